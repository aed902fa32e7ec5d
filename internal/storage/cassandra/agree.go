package cassandra

import (
	"context"
	"math"
	"slices"
	"time"
)

const (
	cqlSchemaVersion = `SELECT schema_version FROM system.local`

	// agreementWait is how long nodes may take to agree on a change of the schema.
	agreementWait = 30 * time.Second
	// versionWait is how long a node may take to say which version of the schema it has. One that
	// takes longer is down, and gets the schema when it comes back.
	versionWait = 5 * time.Second
	// versionPoll is the pause between two rounds of questions.
	versionPoll = 100 * time.Millisecond
)

// ddl runs a statement that changes the schema, and waits until all nodes have it, or agreementWait
// has passed. After that a node that still lacks the change refuses the statement that needs it.
func ddl(ctx context.Context, d *driver, cql string) error {
	if err := d.ContextQuery(ctx, cql, nil).ExecRelease(); err != nil {
		return convert(ctx, err)
	}
	return d.agree(ctx)
}

// agree waits until all nodes that answer have the same version of the schema, or agreementWait has
// passed. It asks each node for its own version, as the driver does not: the driver asks one node
// for those of all, and that node may have heard of the others' changes late or in the wrong order.
func (d *driver) agree(ctx context.Context) error {
	in, cancel := context.WithTimeout(ctx, agreementWait)
	defer cancel()
	for {
		versions, err := d.schemaVersions(in)
		if err == nil && len(versions) > 1 {
			err = d.nodes.clk.Sleep(in, versionPoll)
		} else if err == nil {
			return nil
		}
		if ctx.Err() == nil && in.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// schemaVersions returns the different versions of the schema that the nodes have.
func (d *driver) schemaVersions(ctx context.Context) ([]string, error) {
	in, cancel := context.WithTimeout(ctx, versionWait)
	defer cancel()
	answers, asked, err := askEach[string](in, d, math.MaxInt, cqlSchemaVersion)
	if err != nil {
		return nil, err
	}
	var versions []string
	var errs []error
	for range asked {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		versions = append(versions, a.value)
	}
	if len(versions) == 0 {
		return nil, convert(ctx, telling(errs))
	}
	slices.Sort(versions)
	return slices.Compact(versions), nil
}
