// What to paste so that a program sends to this server.

/** Target is where programs send, and what they show. */
export interface Target {
  /** origin is the address of the server, such as https://metrics.example:9095. */
  origin: string;
  /** host is the name in it, without a port. An IPv6 address has no brackets. */
  host: string;
  tls: boolean;
  /** lines is the port for Graphite's lines. */
  lines: string;
  /** token is what a program shows, "" if this server asks nobody. */
  token: string;
}

export interface Snippet {
  /** where says what to do with the text. */
  where: string;
  text: string;
}

export interface Program {
  id: string;
  name: string;
  /** lines says that it sends Graphite's lines. */
  lines?: true;
  /** ownCA is what the program needs for a certificate of one's own authority. */
  ownCA: string;
  snippets: (t: Target) => Snippet[];
  notes: (t: Target) => string[];
}

const tokenFile = (t: Target): Snippet[] => (t.token ? [{ where: "Once, in a shell: a file with the token", text: `(umask 077 && echo '${t.token}' > quern.token)` }] : []);

const none = () => [];

export const programs: Program[] = [
  {
    id: "curl",
    name: "curl",
    ownCA: "--cacert ca.pem",
    snippets: (t) => [{
      where: "In a shell",
      text: `curl -sS ${t.origin}/api/v1/reports${t.token ? ` \\\n  -H 'Authorization: Bearer ${t.token}'` : ""} \\
  -H 'Content-Type: application/json' -d '
{"source":"my-host","measurements":[
  {"metric":"room_celsius","labels":{"room":"kitchen"},"value":21.5}]}'`,
    }],
    notes: () => ["The answer comes when the measurements are durable. It counts those that were accepted, and names the others with the reason."],
  },
  {
    id: "agent",
    name: "Quern agent",
    ownCA: "--ca-file ca.pem",
    snippets: (t) => [...tokenFile(t), { where: "On the host to measure", text: `quern agent --url ${t.origin}${t.token ? " --token-file quern.token" : ""}` }],
    notes: () => ["It sends processors, memory, disks, file systems and network every 10 seconds. It keeps what it cannot send, for about ten hours."],
  },
  {
    id: "prometheus",
    name: "Prometheus",
    ownCA: "tls_config: {ca_file: ca.pem} beside url",
    snippets: (t) => [{
      where: "In prometheus.yml",
      text: `remote_write:
  - url: ${t.origin}/api/v1/write
${t.token ? `    authorization:\n      credentials: ${t.token}\n` : ""}    queue_config:
      retry_on_http_429: true
`,
    }],
    notes: () => ["Type, help and unit of the metrics come along. Without retry_on_http_429 Prometheus drops what it sends while too much waits here."],
  },
  {
    id: "vmagent",
    name: "vmagent",
    ownCA: "-remoteWrite.tlsCAFile=ca.pem",
    snippets: (t) => [...tokenFile(t), {
      where: "In a shell, with your own prometheus.yml",
      text: `vmagent -promscrape.config=prometheus.yml \\
  -remoteWrite.url=${t.origin}/api/v1/write${t.token ? " \\\n  -remoteWrite.bearerTokenFile=quern.token" : ""}`,
    }],
    notes: none,
  },
  {
    id: "telegraf",
    name: "Telegraf",
    ownCA: 'tls_ca = "ca.pem"',
    snippets: (t) => [{
      where: "In telegraf.conf",
      text: `[[outputs.influxdb_v2]]
  urls = ["${t.origin}"]
  organization = "any"
  bucket = "any"
  token = "${t.token || "any"}"
  content_encoding = "gzip"
  influx_uint_support = true
`,
    }],
    notes: () => ["A field of a measurement becomes the metric measurement_field, with the tags as labels. Quern has no buckets: equal series of two buckets are one."],
  },
  {
    id: "opentelemetry",
    name: "OpenTelemetry",
    ownCA: "tls: {ca_file: ca.pem} beside metrics_endpoint, or OTEL_EXPORTER_OTLP_CERTIFICATE=ca.pem",
    snippets: (t) => [
      {
        where: "In the collector's configuration",
        text: `receivers:
  otlp:
    protocols:
      grpc:
      http:
exporters:
  otlphttp/quern:
    metrics_endpoint: ${t.origin}/v1/metrics
${t.token ? `    headers:\n      Authorization: Bearer ${t.token}\n` : ""}service:
  pipelines:
    metrics:
      receivers: [otlp]
      exporters: [otlphttp/quern]
`,
      },
      {
        where: "Or in the environment of a program with an SDK",
        text: `export OTEL_METRICS_EXPORTER=otlp
export OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=${t.origin}/v1/metrics
export OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf
${t.token ? `export OTEL_EXPORTER_OTLP_METRICS_HEADERS='Authorization=Bearer%20${t.token}'\n` : ""}export OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative
export OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=explicit_bucket_histogram`,
      },
    ],
    notes: () => ["Deltas and exponential histograms are not stored. If a program can only send deltas, add the collector's processor deltatocumulative."],
  },
  {
    id: "collectd",
    name: "collectd",
    ownCA: 'CACert "ca.pem" in the node',
    snippets: (t) => [{
      where: "In collectd.conf",
      text: `LoadPlugin write_http
<Plugin write_http>
  <Node "quern">
    URL "${t.origin}/api/v1/push/collectd"
    Format "JSON"
    StoreRates false
${t.token ? `    User "token"\n    Password "${t.token}"\n` : ""}  </Node>
</Plugin>
`,
    }],
    notes: () => ["The host becomes the label instance. write_http drops what it cannot deliver."],
  },
  {
    id: "graphite",
    name: "Graphite",
    lines: true,
    ownCA: "-CAfile ca.pem",
    snippets: (t) => [{
      where: "In a shell",
      text: t.tls
        ? `echo "room.celsius;room=kitchen 21.5 $(date +%s)" |\n  openssl s_client -quiet -no_ign_eof -connect ${authority(t)} -cert client.pem -key client.key`
        : `echo "room.celsius;room=kitchen 21.5 $(date +%s)" | nc -q 1 ${t.host} ${t.lines}`,
    }],
    notes: () => ["The protocol has no replies. What the server could not take shows at the right."],
  },
  {
    id: "influxdb",
    name: "InfluxDB line",
    ownCA: "--cacert ca.pem",
    snippets: (t) => [{
      where: "In a shell; clients of InfluxDB 2 take the same address and token",
      text: `curl -sS '${t.origin}/api/v2/write?bucket=any&precision=s'${t.token ? ` \\\n  -H 'Authorization: Token ${t.token}'` : ""} \\
  --data-binary "room,host=$(hostname),room=kitchen celsius=21.5"`,
    }],
    notes: () => ["It answers nothing if all is well. Clients of InfluxDB 1 write to /write, with any user and the token as the password."],
  },
  {
    id: "storm",
    name: "Storm",
    lines: true,
    ownCA: "",
    snippets: (t) => [{
      where: "In storm.yaml, or in a topology's configuration",
      text: `topology.metrics.reporters:
  - class: "org.apache.storm.metrics2.reporters.GraphiteStormReporter"
    report.period: 60
    report.period.units: "SECONDS"
    graphite.host: "${t.host}"
    graphite.port: ${t.lines}
    graphite.transport: "tcp"
`,
    }],
    notes: (t) => [
      "Before Storm 2.3 the key is storm.metrics.reporters. Each counter, meter and timer of a worker becomes metrics with dots in their names.",
      ...(t.tls ? ["Storm's reporter speaks no TLS. Let it send to a Quern on its own machine, or put a tunnel such as stunnel between them."] : []),
    ],
  },
];

const authority = (t: Target) => `${t.host.includes(":") ? `[${t.host}]` : t.host}:${t.lines}`;
