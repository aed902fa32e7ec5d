package cassandra

import (
	"context"
	"errors"
	"iter"

	"github.com/gocql/gocql"
	"github.com/scylladb/gocqlx/v2"
)

// session is all that the store needs of a driver. Errors are the contract's: what
// implements it converts its own.
type session interface {
	// exec runs statements that write rows of one partition at the given write timestamp, in
	// µs since 1970: one as it is, several as one unlogged batch. They may be repeated.
	exec(ctx context.Context, tsUs int64, stmts ...statement) error
	// cas runs conditional statements on one partition as one: all of them are applied, or none.
	// After an error it is not known which.
	cas(ctx context.Context, stmts ...statement) (applied bool, err error)
	// page reads up to size rows into dest, a pointer to a slice of structs with db tags, and
	// returns what to go on from, nil at the end.
	page(ctx context.Context, st statement, size int, from []byte, dest any) (next []byte, err error)
	close()
}

// statement is CQL and what its markers stand for.
type statement struct {
	cql  string
	args []any
}

func stmt(cql string, args ...any) statement { return statement{cql, args} }

// driver is a session of gocql's.
type driver struct {
	gocqlx.Session
	// speculate asks another replica too when one is slow to answer a read.
	speculate gocql.SpeculativeExecutionPolicy
	retry     gocql.RetryPolicy
}

func (d *driver) exec(ctx context.Context, tsUs int64, stmts ...statement) error {
	if len(stmts) == 1 {
		q := d.ContextQuery(ctx, stmts[0].cql, nil).Bind(stmts[0].args...)
		q.Query.WithTimestamp(tsUs).Idempotent(true).RetryPolicy(d.retry)
		return convert(ctx, q.ExecRelease())
	}
	b := d.NewBatch(gocql.UnloggedBatch).WithContext(ctx).WithTimestamp(tsUs).RetryPolicy(d.retry)
	for _, st := range stmts {
		b.Entries = append(b.Entries, gocql.BatchEntry{Stmt: st.cql, Args: st.args, Idempotent: true})
	}
	return convert(ctx, d.ExecuteBatch(b))
}

func (d *driver) cas(ctx context.Context, stmts ...statement) (bool, error) {
	// Neither repeated nor asked of two: the second would be refused because of the first.
	if len(stmts) == 1 {
		applied, err := d.ContextQuery(ctx, stmts[0].cql, nil).Bind(stmts[0].args...).MapScanCAS(map[string]any{})
		return applied, convert(ctx, err)
	}
	b := d.NewBatch(gocql.UnloggedBatch).WithContext(ctx)
	for _, st := range stmts {
		b.Entries = append(b.Entries, gocql.BatchEntry{Stmt: st.cql, Args: st.args})
	}
	applied, it, err := d.MapExecuteBatchCAS(b, map[string]any{})
	if err == nil {
		err = it.Close()
	}
	return applied, convert(ctx, err)
}

func (d *driver) page(ctx context.Context, st statement, size int, from []byte, dest any) ([]byte, error) {
	next, err := d.ask(ctx, st, size, from, dest, d.speculate)
	if errors.Is(err, gocql.ErrNoConnections) && d.speculate.Attempts() > 0 {
		// Where there is no second node to ask, gocql gives up the first, which may just be slow.
		next, err = d.ask(ctx, st, size, from, dest, gocql.NonSpeculativeExecution{})
	}
	if err != nil || len(next) == 0 {
		return nil, convert(ctx, err)
	}
	return next, nil
}

func (d *driver) ask(ctx context.Context, st statement, size int, from []byte, dest any, speculate gocql.SpeculativeExecutionPolicy) ([]byte, error) {
	q := d.ContextQuery(ctx, st.cql, nil).Bind(st.args...)
	q.Query.PageSize(size).PageState(from).Idempotent(true).RetryPolicy(d.retry).SetSpeculativeExecutionPolicy(speculate)
	it := q.Iter()
	next := it.PageState()
	return next, it.Select(dest)
}

func (d *driver) close() { d.Session.Close() }

// limited has no more than limiter allows wait for an answer at once.
type limited struct {
	session
	limiter *limiter
}

func (l *limited) exec(ctx context.Context, tsUs int64, stmts ...statement) error {
	return l.limiter.do(ctx, func() error { return l.session.exec(ctx, tsUs, stmts...) })
}

func (l *limited) cas(ctx context.Context, stmts ...statement) (applied bool, err error) {
	err = l.limiter.do(ctx, func() error {
		applied, err = l.session.cas(ctx, stmts...)
		return err
	})
	return applied, err
}

func (l *limited) page(ctx context.Context, st statement, size int, from []byte, dest any) (next []byte, err error) {
	err = l.limiter.do(ctx, func() error {
		next, err = l.session.page(ctx, st, size, from, dest)
		return err
	})
	return next, err
}

// rows yields what a query finds, page by page. Nothing is held while the loop's body runs.
func rows[R any](ctx context.Context, s session, pageRows int, st statement) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		var from []byte
		for {
			var page []R
			next, err := s.page(ctx, st, pageRows, from, &page)
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
			if next == nil {
				return
			}
			from = next
		}
	}
}

// all is rows in a slice.
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

// Rows to a page: of small rows, and of those that hold chunks.
const (
	manyRows = 5000
	fewRows  = 200
)
