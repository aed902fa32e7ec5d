package cassandra

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// peersOverTime is a session with a node that learns of the others: each look at the cluster finds
// the next list of peers' data centres, and the last list from then on.
type peersOverTime struct {
	session
	peers [][]string
}

func (p *peersOverTime) page(_ context.Context, st statement, _ int, _ []byte, dest any) ([]byte, error) {
	rows := reflect.ValueOf(dest).Elem()
	add := func(dataCentre, version string) {
		row := reflect.New(rows.Type().Elem()).Elem()
		row.FieldByName("DataCenter").SetString(dataCentre)
		if f := row.FieldByName("Version"); f.IsValid() {
			f.SetString(version)
		}
		rows.Set(reflect.Append(rows, row))
	}
	rows.SetLen(0)
	if st.cql == cqlLocal {
		add("dc1", "5.0.9")
		return nil, nil
	}
	for _, dataCentre := range p.peers[0] {
		add(dataCentre, "")
	}
	if len(p.peers) > 1 {
		p.peers = p.peers[1:]
	}
	return nil, nil
}

// A node that has just started knows few of the others, or not their data centres. The default
// number of copies waits until it knows all.
func TestDefaultCopiesOfAClusterThatStarts(t *testing.T) {
	for _, c := range []struct {
		name  string
		hosts string
		peers [][]string
		want  string // the copies, or a part of the refusal
	}{
		{"one node", "a", [][]string{{}}, "dc1=1"},
		{"all known", "a", [][]string{{"dc1", "dc1"}}, "dc1=3"},
		{"five nodes", "a", [][]string{{"dc1", "dc1", "dc1", "dc1"}}, "dc1=3"},
		{"data centres unknown at first", "a", [][]string{{"", ""}, {"dc1", ""}, {"dc1", "dc1"}}, "dc1=3"},
		{"peers unknown at first", "a,b,c", [][]string{{}, {"dc1"}, {"dc1", "dc1"}}, "dc1=3"},
		{"two data centres", "a,b", [][]string{{"", "dc2"}, {"dc1", "dc2"}}, "dc1=2"},
		{"never", "a,b,c", [][]string{{}, {"dc1"}}, "a node knows 2 of 3"},
		{"a peer without a data centre", "a", [][]string{{"dc1", ""}}, "--replication dc1=3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &Options{Hosts: strings.Split(c.hosts, ","), LocalDC: "dc1", Clock: clock.System{}}
				s := &peersOverTime{peers: c.peers}
				found, err := look(t.Context(), o, s)
				require.NoError(t, err)
				found, err = wholeCluster(t.Context(), o, s, found)
				if !strings.HasPrefix(c.want, "dc1=") {
					require.ErrorIs(t, err, storage.ErrSettings)
					require.ErrorContains(t, err, c.want)
					return
				}
				require.NoError(t, err)
				copies, err := copiesByDC("", &found)
				require.NoError(t, err)
				require.Equal(t, c.want, formatCopies(copies, "%s=%s"))
			})
		})
	}
}
