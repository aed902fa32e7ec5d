package influx

import (
	"fmt"
	"strings"
	"sync"
)

// Clashes remembers of what measurement and field a metric was first made, and so finds others that make the same one: the
// field used of disk_io and the field io_used of disk are both disk_io_used, and their samples overwrite each other. The zero
// value remembers nothing yet; it is safe for concurrent use. It forgets everything when it knows too many metrics.
type Clashes struct {
	mu    sync.Mutex
	first map[string]int // by metric, the length of the measurement's name
}

// clash is a metric with the lengths of two measurements that have a field for it.
type clash struct {
	metric       string
	first, other int
}

// String names both.
func (c *clash) String() string {
	field := func(n int) string { return fmt.Sprintf("field %q of %q", clip(c.metric[n+1:]), clip(c.metric[:n])) }
	return fmt.Sprintf("%s and %s are the same metric %q", field(c.other), field(c.first), clip(c.metric))
}

// find is the clash of a metric whose measurement has a name of that length, nil if there is none.
func (c *Clashes) find(metric string, measurement int) *clash {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, ok := c.first[metric]
	switch {
	case ok && first == measurement:
		return nil
	case ok:
		return &clash{metric, first, measurement}
	case c.first == nil || len(c.first) >= maxNames:
		c.first = make(map[string]int)
	}
	c.first[strings.Clone(metric)] = measurement
	return nil
}
