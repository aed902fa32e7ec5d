package cassandra

import "github.com/prometheus/client_golang/prometheus"

type collector struct {
	limiter *limiter
	nodes   *nodes
	clocks  *clocks
}

var (
	descLimit = prometheus.NewDesc("quern_cassandra_in_flight_limit",
		"Maximum number of requests awaiting an answer at once; lower while the servers report overload.", nil, nil)
	descRunning  = prometheus.NewDesc("quern_cassandra_in_flight", "Requests awaiting an answer.", nil, nil)
	descRequests = prometheus.NewDesc("quern_cassandra_requests_total",
		"Requests that have ended, after retries, by outcome.", []string{"outcome"}, nil)
	descLast = prometheus.NewDesc("quern_cassandra_node_asked_last",
		"1 for a node that does not answer, or answers much later than others, and so is asked only if no other node is left.", []string{"node"}, nil)
	descOffset = prometheus.NewDesc("quern_cassandra_node_clock_offset_seconds",
		"How far the clock of a node was ahead of this machine's at the last reading. The time that a request takes limits the accuracy.", []string{"node"}, nil)
	descWaiting = prometheus.NewDesc("quern_cassandra_queued", "Requests waiting to be sent.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descLimit
	ch <- descRunning
	ch <- descWaiting
	ch <- descRequests
	ch <- descLast
	ch <- descOffset
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	limit, running, waiting := c.limiter.state()
	ch <- prometheus.MustNewConstMetric(descLimit, prometheus.GaugeValue, float64(limit))
	ch <- prometheus.MustNewConstMetric(descRunning, prometheus.GaugeValue, float64(running))
	ch <- prometheus.MustNewConstMetric(descWaiting, prometheus.GaugeValue, float64(waiting))
	for _, o := range outcomes {
		ch <- prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(c.limiter.requests(o)), o)
	}
	offsets := c.clocks.offsets()
	for address, last := range c.nodes.askedLast() {
		value := 0.0
		if last {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(descLast, prometheus.GaugeValue, value, address)
		if ahead, ok := offsets[address]; ok {
			ch <- prometheus.MustNewConstMetric(descOffset, prometheus.GaugeValue, ahead.Seconds(), address)
		}
	}
}
