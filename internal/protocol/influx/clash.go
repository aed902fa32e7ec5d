package influx

import (
	"fmt"
	"strings"
	"sync"

	"github.com/quern/quern/internal/wire/excerpt"
)

// clashMemory remembers the measurement and field that first made each metric, and so finds others that
// make the same metric. For example, field used of disk_io and field io_used of disk are both
// disk_io_used, and their samples overwrite each other. The zero value is empty. clashMemory is safe
// for concurrent use. It forgets everything when it has too many metrics.
type clashMemory struct {
	mu    sync.Mutex
	first map[string]int // length of the measurement's name, by metric
}

// clash is a metric and the lengths of the names of two measurements with a field for it.
type clash struct {
	metric       string
	first, other int
}

// String describes both fields.
func (c *clash) String() string {
	field := func(n int) string {
		return fmt.Sprintf("field %s of %s", excerpt.Quoted(c.metric[n+1:]), excerpt.Quoted(c.metric[:n]))
	}
	return fmt.Sprintf("%s and %s are the same metric %s", field(c.other), field(c.first), excerpt.Quoted(c.metric))
}

// find returns the clash of a metric whose measurement's name has the given length, nil if there is
// none.
func (c *clashMemory) find(metric string, measurement int) *clash {
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
