package otlp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// text returns a value as text, by OpenTelemetry's rules for protocols with only text: strings as they are, bytes in
// base64, all else as JSON. An absent value is "".
func (d *decoder) text(v *commonpb.AnyValue) string {
	plain := plainValue(v)
	if plain == nil {
		return ""
	}
	if s, ok := plain.(string); ok {
		return s
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(plain); err != nil {
		panic(err) // plainValue returns nothing that JSON does not have
	}
	return d.b.Copy(bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}))
}

// plainValue returns a value as encoding/json takes it, which sorts maps by their keys.
func plainValue(v *commonpb.AnyValue) any {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_BoolValue:
		return v.BoolValue
	case *commonpb.AnyValue_IntValue:
		return v.IntValue
	case *commonpb.AnyValue_DoubleValue:
		return plainDouble(v.DoubleValue)
	case *commonpb.AnyValue_BytesValue:
		return base64.StdEncoding.EncodeToString(v.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		list := make([]any, len(v.ArrayValue.GetValues()))
		for i, element := range v.ArrayValue.GetValues() {
			list[i] = plainValue(element)
		}
		return list
	case *commonpb.AnyValue_KvlistValue:
		object := make(map[string]any)
		for _, kv := range v.KvlistValue.GetValues() {
			object[kv.GetKey()] = plainValue(kv.GetValue())
		}
		return object
	}
	return nil
}

func plainDouble(v float64) any {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	return v
}
