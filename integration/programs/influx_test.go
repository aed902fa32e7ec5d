package programs

import (
	"testing"
	"time"

	influx2 "github.com/influxdata/influxdb-client-go/v2"
	influx1 "github.com/influxdata/influxdb1-client/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rooms generates points of a measurement, one every 50 ms.
func rooms(t *testing.T, more map[string]string, do func(tags map[string]string, fields map[string]any, at time.Time)) points {
	t.Helper()
	sent := points{}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := range 200 {
		at := time.Now()
		tags := map[string]string{"room": []string{"hall", "kitchen, left", `wine=cellar "2"`}[i%3], "host": "a b"}
		do(tags, map[string]any{"celsius": 20 + float64(i)/8, "people": i % 4, "lit": i%2 == 0, "note": `a "string", of which nothing is kept`}, at)
		lit := 0.0
		if i%2 == 0 {
			lit = 1
		}
		for field, v := range map[string]float64{"celsius": 20 + float64(i)/8, "people": float64(i % 4), "lit": lit} {
			m := map[string]string{"__name__": "it_room_" + field}
			for k, v := range tags {
				m[k] = v
			}
			for k, v := range more {
				m[k] = v
			}
			sent.add(labels.FromMap(m), at.UnixMilli(), v)
		}
		<-tick.C
	}
	return sent
}

// TestInflux2 runs the client of InfluxDB 2, which writes in compressed batches.
func TestInflux2(t *testing.T) {
	t.Parallel()
	p := serve(t)
	front := record(t, p)
	client := influx2.NewClientWithOptions(front.URL, "any token",
		influx2.DefaultOptions().SetBatchSize(50).SetUseGZip(true).SetFlushInterval(300).SetMaxRetries(0))
	ready, err := client.Health(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, "pass", ready.Status)
	writer := client.WriteAPI("org", "bucket")
	failed := writer.Errors()
	sent := rooms(t, nil, func(tags map[string]string, fields map[string]any, at time.Time) {
		writer.WritePoint(influx2.NewPoint("it_room", tags, fields, at))
	})
	writer.Flush()
	client.Close()
	for err := range failed {
		require.NoError(t, err)
	}
	stored, err := exported(p)
	require.NoError(t, err)
	requireSame(t, sent, stored)
	front.keep(t, "influxdb-client-go-2.14.lp.gz", func(r request) bool { return r.path == "/api/v2/write" })
	ground(t, p)
}

// TestInflux1 runs the client of InfluxDB 1, which creates its database and writes to it.
func TestInflux1(t *testing.T) {
	t.Parallel()
	p := serve(t)
	front := record(t, p)
	client, err := influx1.NewHTTPClient(influx1.HTTPConfig{Addr: front.URL, Username: "any", Password: "any"})
	require.NoError(t, err)
	_, _, err = client.Ping(time.Minute)
	require.NoError(t, err)
	reply, err := client.Query(influx1.NewQuery("CREATE DATABASE house", "", ""))
	require.NoError(t, err)
	require.NoError(t, reply.Error())
	sent := rooms(t, map[string]string{"db": "house"}, func(tags map[string]string, fields map[string]any, at time.Time) {
		batch, err := influx1.NewBatchPoints(influx1.BatchPointsConfig{Database: "house", Precision: "ms"})
		require.NoError(t, err)
		point, err := influx1.NewPoint("it_room", tags, fields, at)
		require.NoError(t, err)
		batch.AddPoint(point)
		require.NoError(t, client.Write(batch))
	})
	require.NoError(t, client.Close())
	stored, err := exported(p)
	require.NoError(t, err)
	requireSame(t, sent, stored)
	front.keep(t, "influxdb1-client.lp", func(r request) bool { return r.path == "/write" })
	ground(t, p)
}
