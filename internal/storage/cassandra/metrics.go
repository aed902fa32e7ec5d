package cassandra

import "github.com/prometheus/client_golang/prometheus"

type collector struct {
	limiter *limiter
	nodes   *nodes
}

var (
	descLimit = prometheus.NewDesc("quern_cassandra_in_flight_limit",
		"Requests that may wait for an answer at once; lower while the servers say that they are too many.", nil, nil)
	descRunning  = prometheus.NewDesc("quern_cassandra_in_flight", "Requests that wait for an answer.", nil, nil)
	descRequests = prometheus.NewDesc("quern_cassandra_requests_total",
		"Requests that have ended, after retries, by outcome.", []string{"outcome"}, nil)
	descLast = prometheus.NewDesc("quern_cassandra_node_asked_last",
		"1 for a node that does not answer, or much later than others, and is left to requests that find no other.", []string{"node"}, nil)
	descWaiting = prometheus.NewDesc("quern_cassandra_queued", "Requests that wait to be sent.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descLimit
	ch <- descRunning
	ch <- descWaiting
	ch <- descRequests
	ch <- descLast
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
	for address, last := range c.nodes.askedLast() {
		value := 0.0
		if last {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(descLast, prometheus.GaugeValue, value, address)
	}
}
