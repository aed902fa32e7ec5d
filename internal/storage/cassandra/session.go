package cassandra

import (
	"context"
	"iter"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
	"github.com/scylladb/gocqlx/v2"
)

// session is all that the store needs of a driver. An implementation returns the contract's errors.
type session interface {
	// exec runs statements that write rows of one partition at the given write timestamp, in µs
	// since 1970: a single statement as it is, several as one unlogged batch. They may be repeated,
	// even after exec has returned, so the values in them must not change.
	exec(ctx context.Context, tsUs int64, stmts ...statement) error
	// cas runs conditional statements on one partition as one: all of them are applied, or none.
	// After an error either may be the case. cas tries more than once only if every statement is
	// repeatable.
	cas(ctx context.Context, stmts ...statement) (applied bool, err error)
	// page reads up to size rows into dest, a pointer to a slice of structs with db tags. It
	// returns the position of the next page, nil at the end.
	page(ctx context.Context, st statement, size int, from []byte, dest any) (next []byte, err error)
	// clocks reads the clocks of several nodes, at least one. It does not wait for slow nodes.
	clocks(ctx context.Context) ([]reading, error)
	close()
}

// statement is CQL and the values of its markers.
type statement struct {
	cql  string
	args []any
	// repeatable marks a conditional statement that the driver may send again. Its caller must
	// expect a refusal that is due to the statement's own effect.
	repeatable bool
	// serial marks a read that sees the outcome of every conditional statement before it: the servers
	// finish those that are under way.
	serial bool
}

func stmt(cql string, args ...any) statement { return statement{cql: cql, args: args} }

func (st statement) again() statement {
	st.repeatable = true
	return st
}

// driver is a gocql session.
type driver struct {
	gocqlx.Session
	nodes *nodes // nil for the first session of connect and for Session
	retry gocql.RetryPolicy
}

func (d *driver) exec(ctx context.Context, tsUs int64, stmts ...statement) error {
	var attempts atomic.Int64
	_, err := speculate(ctx, d.nodes, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, d.write(ctx, tsUs, stmts, &attempts)
	})
	return certain(convert(ctx, err), attempts.Load())
}

func (d *driver) write(ctx context.Context, tsUs int64, stmts []statement, attempts *atomic.Int64) error {
	if len(stmts) == 1 {
		q := d.ContextQuery(ctx, stmts[0].cql, nil).Bind(stmts[0].args...)
		defer q.Release()
		q.Query.WithTimestamp(tsUs).Idempotent(true).RetryPolicy(d.retry)
		err := q.Exec()
		attempts.Add(int64(q.Attempts()))
		return err
	}
	b := d.NewBatch(gocql.UnloggedBatch).WithContext(ctx).WithTimestamp(tsUs).RetryPolicy(d.retry)
	for _, st := range stmts {
		b.Entries = append(b.Entries, gocql.BatchEntry{Stmt: st.cql, Args: st.args, Idempotent: true})
	}
	err := d.ExecuteBatch(b)
	attempts.Add(int64(b.Attempts()))
	return err
}

func (d *driver) cas(ctx context.Context, stmts ...statement) (applied bool, err error) {
	var attempts atomic.Int64
	if slices.ContainsFunc(stmts, func(st statement) bool { return !st.repeatable }) {
		// Sent once and to one node: a second attempt would be refused because of the first.
		applied, err = d.compareAndSet(ctx, nil, stmts, &attempts)
	} else {
		applied, err = speculate(ctx, d.nodes, func(ctx context.Context) (bool, error) {
			return d.compareAndSet(ctx, d.retry, stmts, &attempts)
		})
	}
	return applied, certain(convert(ctx, err), attempts.Load())
}

func (d *driver) compareAndSet(ctx context.Context, retry gocql.RetryPolicy, stmts []statement, attempts *atomic.Int64) (bool, error) {
	if len(stmts) == 1 {
		q := d.ContextQuery(ctx, stmts[0].cql, nil).Bind(stmts[0].args...)
		q.Query.RetryPolicy(retry)
		applied, err := q.MapScanCAS(map[string]any{})
		attempts.Add(int64(q.Attempts()))
		return applied, err
	}
	b := d.NewBatch(gocql.UnloggedBatch).WithContext(ctx).RetryPolicy(retry)
	for _, st := range stmts {
		b.Entries = append(b.Entries, gocql.BatchEntry{Stmt: st.cql, Args: st.args})
	}
	applied, it, err := d.MapExecuteBatchCAS(b, map[string]any{})
	attempts.Add(int64(b.Attempts()))
	if err == nil {
		err = it.Close()
	}
	return applied, err
}

func (d *driver) page(ctx context.Context, st statement, size int, from []byte, dest any) ([]byte, error) {
	type found struct {
		rows reflect.Value
		next []byte
	}
	// Each attempt reads into its own rows.
	f, err := speculate(ctx, d.nodes, func(ctx context.Context) (found, error) {
		q := d.ContextQuery(ctx, st.cql, nil).Bind(st.args...)
		q.Query.PageSize(size).PageState(from).Idempotent(true).RetryPolicy(d.retry)
		if st.serial {
			q.Query.Consistency(gocql.Consistency(gocql.LocalSerial))
		}
		it := q.Iter()
		f := found{reflect.New(reflect.TypeOf(dest).Elem()), it.PageState()}
		return f, it.Select(f.rows.Interface())
	})
	if err != nil {
		return nil, convert(ctx, err)
	}
	reflect.ValueOf(dest).Elem().Set(f.rows.Elem())
	if len(f.next) == 0 {
		return nil, nil
	}
	return f.next, nil
}

func (d *driver) close() { closeWithin(d.Session.Close, closeLimit) }

// closeLimit is how long the end of a session may take.
const closeLimit = 5 * time.Second

// closeWithin does not wait for longer than limit. gocql 1.7.0 may never return: Close waits for a goroutine to end, which has
// ended already if a refresh of the ring was asked for at the same moment. The connections are closed by then.
func closeWithin(end func(), limit time.Duration) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	select {
	case <-ended:
	case <-time.After(limit): //nolint:forbidigo // a driver is closed in the machine's time
	}
}

// around passes every request of a session through do.
type around struct {
	session
	do func(ctx context.Context, request string, send func(context.Context) error) error
}

// limited lets at most as many requests wait for an answer at once as l allows.
func limited(s session, l *limiter) session {
	return around{s, func(ctx context.Context, _ string, send func(context.Context) error) error {
		return l.do(ctx, func() error { return send(ctx) })
	}}
}

func (a around) exec(ctx context.Context, tsUs int64, stmts ...statement) error {
	return a.do(ctx, "exec", func(ctx context.Context) error { return a.session.exec(ctx, tsUs, stmts...) })
}

func (a around) cas(ctx context.Context, stmts ...statement) (applied bool, err error) {
	err = a.do(ctx, "cas", func(ctx context.Context) error {
		applied, err = a.session.cas(ctx, stmts...)
		return err
	})
	return applied && err == nil, err
}

func (a around) page(ctx context.Context, st statement, size int, from []byte, dest any) (next []byte, err error) {
	err = a.do(ctx, "page", func(ctx context.Context) error {
		next, err = a.session.page(ctx, st, size, from, dest)
		return err
	})
	return next, err
}

func (a around) clocks(ctx context.Context) (found []reading, err error) {
	err = a.do(ctx, "clocks", func(ctx context.Context) error {
		found, err = a.session.clocks(ctx)
		return err
	})
	return found, err
}

// paged yields what a query finds, page by page. No request is open while the loop's body runs. pageRows returns how many
// rows a page may have at most. It is asked before each page, when the loop's body has seen the page before.
func paged[R any](ctx context.Context, s session, pageRows func() int, st statement) iter.Seq2[[]R, error] {
	return func(yield func([]R, error) bool) {
		var from []byte
		for {
			var page []R
			next, err := s.page(ctx, st, pageRows(), from, &page)
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(page, nil) || next == nil {
				return
			}
			from = next
		}
	}
}

// rows yields what a query finds, row by row, from pages of up to pageRows.
func rows[R any](ctx context.Context, s session, pageRows int, st statement) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		for page, err := range paged[R](ctx, s, func() int { return pageRows }, st) {
			if err != nil {
				var zero R
				yield(zero, err)
				return
			}
			for _, r := range page {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// all collects rows in a slice.
func all[R any](ctx context.Context, s session, st statement) ([]R, error) {
	var out []R
	for r, err := range rows[R](ctx, s, manyRows, st) {
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Rows per page: of small rows, and of rows that hold the chunk of a flush.
const (
	manyRows = 5000
	fewRows  = 200
)
