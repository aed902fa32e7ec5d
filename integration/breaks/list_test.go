package breaks

// list is sorted by invariant.
var list = []brk{
	// 1. Acknowledged means durable.
	{
		name: "a report is answered before its commit", invariant: 1,
		file: "internal/ingest/commit.go",
		old:  "case <-c.done:\n", new: "default:\n",
		pkg: "internal/ingest", test: "TestGroupCommit",
	},
	{
		name: "a commit that failed is acknowledged", invariant: 1,
		file: "internal/cache/writer.go",
		old:  "u.err, u.lost = err, true", new: "u.lost = true",
		pkg: "internal/ingest", test: "TestFailedCommit",
	},
	{
		name: "a flush writes the cache and no raw chunks", invariant: 1,
		file: "internal/cache/writer.go",
		old:  "u.tried = true", new: "u.tried, u.raw = true, nil",
		pkg: "internal/ingest", test: "TestCloseDrains",
	},
	{
		name: "the embedded store does not sync what ingest writes", invariant: 1,
		file: "internal/storage/pebble/write.go",
		old:  "batch.Commit(lsm.Sync)", new: "batch.Commit(lsm.NoSync)",
		pkg: "internal/storage/pebble", test: "TestPowerLoss",
	},
	{
		name: "a new store is made where one has lost its manifest", invariant: 1,
		file: "internal/storage/pebble/directory.go",
		old:  "len(others) == 0", new: "len(others) >= 0",
		pkg: "internal/storage/pebble", test: "TestRefusals",
	},
	{
		name: "a store without its logs is opened", invariant: 1,
		file: "internal/storage/pebble/directory.go",
		old:  "if hasMarker(names, versionMarker) && !", new: "if hasMarker(nil, versionMarker) && !",
		pkg: "internal/storage/pebble", test: "TestRefusals/no_log",
	},
	{
		name: "a flush writes no mark for the blocks that it opens", invariant: 1,
		file: "internal/cache/writer.go",
		old:  "if x.blocks[u.Block.Start] != nil {\n\t\t\treturn nil", new: "if x != nil {\n\t\t\treturn nil",
		pkg: "integration/acceptance", test: "TestModel/scripts/levels",
	},
	{
		name: "marks count as put although their flush failed", invariant: 1,
		file: "internal/cache/writer.go",
		old:  "if u.lost {\n\t\tif x != nil", new: "if u.lost && false {\n\t\tif x != nil",
		pkg: "integration/acceptance", test: "TestModel/IngestFailsAtEveryStep",
	},

	// 2. Raw is the truth.
	{
		name: "the cache is trusted although chunks are missing", invariant: 2,
		file: "internal/cache/block.go",
		old:  "len(chunks) == 0 || len(chunks) != w.chunks()", new: "len(chunks) == 0",
		pkg: "integration/acceptance", test: "TestModel/CacheLost",
	},
	{
		name: "the cache is trusted next to a late mark", invariant: 2,
		file: "internal/cache/block.go",
		old:  "return m.Kind != storage.MarkFresh })", new: "return m.Kind == storage.MarkOpen })",
		pkg: "integration/acceptance", test: "TestModel/scripts/late_data",
	},
	{
		name: "the cache is trusted by a part of the marks", invariant: 2,
		file: "internal/cache/block.go",
		old:  "!w.Part && ", new: "",
		pkg: "internal/rollup", test: "TestOpenMarkBehindAFlood",
	},
	{
		name: "a block is sealed although a flush into it failed", invariant: 2,
		file: "internal/cache/block.go",
		old:  "b.state == open", new: "b != nil",
		pkg: "integration/acceptance", test: "TestModel/scripts/ingest_fails",
	},
	{
		name: "a run does not record that it begins", invariant: 2,
		file: "internal/rollup/run.go",
		old:  "if !state.Begun {", new: "if !state.Begun && false {",
		pkg: "integration/acceptance", test: "TestModel/RestartAfterEarlyRun",
	},
	{
		name: "ingest relies on the marks and the cache of a slice whose run was aborted", invariant: 2,
		file: "internal/storage/storage.go",
		old:  "return s.Begun || s.Complete", new: "return s.Complete",
		pkg: "internal/cache", test: "TestAfterAnAbortedRun",
	},
	{
		name: "a block is sealed although late data of it was ground in a later slice", invariant: 2,
		file: "internal/cache/writer.go",
		old:  "if !trusted {", new: "if !trusted && false {",
		pkg: "internal/cache", test: "TestSealBehindALaterRun",
	},
	{
		name: "a store does not keep the newest slice that a run has begun", invariant: 2,
		file: "internal/storage/pebble/write.go",
		old:  "err = batch.Set(begunKey(k.Bucket), appendInt(nil, k.StartMs), nil)", new: "err = nil",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/NewestBegunIsKept",
	},
	{
		name: "the newest slice that a run has begun goes back with the clock", invariant: 2,
		file: "internal/storage/pebble/write.go",
		old:  "(!ok || newest < k.StartMs)", new: "(!ok || newest != k.StartMs)",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/NewestBegunIsKept",
	},
	{
		name: "a run relies on a cache although a later slice was ground", invariant: 2,
		file: "internal/rollup/block.go",
		old:  "if w.Fresh() && part == w.Block && g.run.trusts {", new: "if w.Fresh() && part == w.Block {",
		pkg: "integration/acceptance", test: "TestTimestampsAhead",
	},
	{
		name: "a run relies on a cache although another run of the slice has begun", invariant: 2,
		file: "internal/cache/block.go",
		old:  "return !ok || newestMs < k.StartMs, nil", new: "return !ok || newestMs <= k.StartMs, nil",
		pkg: "integration/acceptance", test: "TestTimestampsAhead",
	},
	{
		name: "on a cluster ingest writes at the time of a clock that was set since it was confirmed", invariant: 2,
		file: "internal/storage/cassandra/timestamps.go",
		old:  "return mostStep == 0 || t.confirmed", new: "return true || t.confirmed",
		pkg: "internal/storage/cassandra", test: "TestNoTimestampByAClockThatWasSet",
	},
	{
		name: "what nobody can say counts as whole", invariant: 2,
		file: "internal/cache/block.go",
		old:  "\t\treturn false, nil\n\tcase err != nil:\n\t\treturn false, fmt.Errorf(\"read the newest slice",
		new:  "\t\treturn true, nil\n\tcase err != nil:\n\t\treturn false, fmt.Errorf(\"read the newest slice",
		pkg:  "internal/cache", test: "TestSealBehindALaterRun",
	},
	{
		name: "a new block size begins where slices are in use", invariant: 2,
		file: "internal/storage/pebble/store.go",
		old:  "unused := storage.CheckUnused(ctx, s, s.ladder, e)", new: "var unused error",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/EpochsLeaveWhatIsUsed",
	},
	{
		name: "a new block size begins by a clock of 1970", invariant: 2,
		file: "internal/app/backend/open.go",
		old:  "if err := st.CheckFit(ctx); err != nil {", new: "if err := ctx.Err(); err != nil {",
		pkg: "internal/app/backend", test: "TestNoBlockSizeByAClockBehind",
	},
	{
		name: "a clock that is far ahead passes", invariant: 2,
		file: "internal/clock/gate.go",
		old:  "ahead > mostAhead", new: "ahead > 99*mostAhead",
		pkg: "integration/acceptance", test: "TestPebble/scripts/clock_ahead",
	},
	{
		name: "rows expire by a clock that is refused", invariant: 2,
		file: "internal/storage/pebble/operations.go",
		old:  "\tif err != nil {\n\t\treturn nil //nolint:nilerr // ClockRefused says why", new: "\tif ctx.Err() != nil {\n\t\treturn nil //nolint:nilerr // ClockRefused says why",
		pkg: "internal/storage/pebble", test: "TestClockRefused",
	},
	{
		name: "what users write goes by a clock that is refused", invariant: 2,
		file: "internal/storage/pebble/clock.go",
		old:  "if err := s.gate.Confirms(now); err != nil {", new: "if err := error(nil); err != nil {",
		pkg: "internal/app", test: "TestClockRefused",
	},
	{
		name: "a node whose clock differs is outvoted", invariant: 2,
		file: "internal/storage/cassandra/clock.go",
		old:  "if len(far) > 0 {", new: "if len(far) > len(found)/2 {",
		pkg: "internal/storage/cassandra", test: "TestOneWrongClockOfThree",
	},
	{
		name: "a new block size is chosen without a look at what is in use", invariant: 2,
		file: "internal/app/backend/open.go",
		old:  "from = max(from, ladder.SliceAt(metric.Raw, used).EndMs)", new: "_ = used",
		pkg: "internal/app/backend", test: "TestBlockSizeAfterWhatIsUsed",
	},
	{
		name: "what is opened while a look is under way is lost when that look ends", invariant: 2,
		file: "internal/recovery/missed.go",
		old:  "if r.widened != l.widened {", new: "if false {",
		pkg: "internal/recovery", test: "TestFoundDuringALook",
	},
	{
		name: "late data is passed on as a chunk beside the one of its slice", invariant: 2,
		file: "internal/cache/promote.go",
		old:  "w.Slice.StartMs == w.Partition.StartMs && w.Whole()", new: "true",
		pkg: "integration/acceptance", test: "TestModel/scripts/late_data",
	},
	{
		name: "what a flush that failed may have left on one copy is not written again", invariant: 2,
		file: "internal/cache/retry.go",
		old:  "if len(w.retries) == 0 {\n\t\treturn nil", new: "if true {\n\t\treturn nil",
		pkg: "integration/acceptance", test: "TestModel/LandedOnOneCopy",
	},
	{
		name: "the newest id goes back when chunks are written again", invariant: 2,
		file: "internal/storage/pebble/write.go",
		old:  "s.NewestID().Compare(newest) >= 0", new: "s.NewestID() == newest",
		pkg: "integration/acceptance", test: "TestPebble/CorrectionAfterMend",
	},
	{
		name: "of a sample that came twice the first one counts", invariant: 2,
		file: "internal/ingest/group.go",
		old:  "if i+1 == len(samples) || metric.CompareSamples(s, samples[i+1]) != 0 {", new: "if i > 0 && metric.CompareSamples(s, out[len(out)-1]) == 0 {\n\t\t\tcontinue\n\t\t}\n\t\tif i >= 0 {",
		pkg: "integration/acceptance", test: "TestModel/scripts/values",
	},
	{
		name: "a row whose last finite sample is gone stays", invariant: 2,
		file: "internal/rollup/block.go",
		old:  "g.grinder.Samples(samples); ok || r.NonFinite || w.Late() {", new: "g.grinder.Samples(samples); ok || r.NonFinite {",
		pkg: "integration/acceptance", test: "TestModel/Emptied",
	},
	{
		name: "a sample is refused at the age cap", invariant: 2,
		file: "internal/ingest/resolve.go",
		old:  "nowMs-timeMs > r.ageCap.Milliseconds():", new: "nowMs-timeMs >= r.ageCap.Milliseconds():",
		pkg: "integration/acceptance", test: "TestModel/scripts/age_cap",
	},
	{
		name: "a sample is taken beyond the age cap", invariant: 2,
		file: "internal/ingest/resolve.go",
		old:  "nowMs-timeMs > r.ageCap.Milliseconds():", new: "nowMs-timeMs > 1+r.ageCap.Milliseconds():",
		pkg: "integration/acceptance", test: "TestModel/scripts/age_cap",
	},
	{
		name: "work that an outage left is dropped at the age cap", invariant: 2,
		file: "internal/recovery/recovery.go",
		old:  "return !storage.Whole(r.store, ", new: "return nowMs-w.DueMs() > r.opts.AgeCap.Milliseconds()+w.Slice.EndMs-w.Slice.StartMs || !storage.Whole(r.store, ",
		pkg: "integration/acceptance", test: "TestModel/scripts/long_outage",
	},
	{
		name: "slices that were left open a month ago are not looked for", invariant: 2,
		file: "internal/recovery/recovery.go",
		old:  "r.search = everywhere(r.ladder.Top())", new: "r.search = search{fromMs: r.openable(clock.NowMs(clk) - 30*24*3_600_000), toMs: everywhere(r.ladder.Top()).toMs}",
		pkg: "integration/acceptance", test: "TestModel/scripts/long_outage",
	},
	{
		name: "input that has expired leaves no trace in the rows", invariant: 2,
		file: "internal/rollup/partial.go",
		old:  "return g.keepFuller(ctx, w, func(metric.ScheduleID) bool { return true })", new: "return nil",
		pkg: "integration/acceptance", test: "TestModel/scripts/long_outage",
	},
	{
		name: "the sample between two windows of PromQL counts in both", invariant: 2,
		file: "internal/promquery/exact.go",
		old:  "s.Sum -= s.First", new: "s.Sum -= 0",
		pkg: "internal/promquery", test: "TestYoungWindows",
	},
	{
		name: "a row answers for samples that are not finite", invariant: 2,
		file: "internal/promquery/exact.go",
		old:  "s.Partial || s.NonFinite })", new: "s.Partial })",
		pkg: "internal/promquery", test: "TestYoungWindows",
	},
	{
		name: "a row above one that could not be computed looks whole", invariant: 2,
		file: "internal/rollup/grind.go",
		old:  "partial = partial || row.Partial", new: "partial = partial || row.Partial && row.Count > 0",
		pkg: "integration/acceptance", test: "TestModel/scripts/long_outage",
	},
	{
		name: "a row is computed again from input that has partly expired", invariant: 2,
		file: "internal/recovery/recovery.go",
		old:  "!storage.Whole(r.store, w.Bucket(), w.Slice, nowMs)", new: "w.Slice.EndMs <= r.store.WholeFrom(w.Bucket(), nowMs)",
		pkg: "internal/recovery", test: "TestExpired",
	},
	{
		name: "two series get one id", invariant: 2,
		file: "internal/registry/allocator.go",
		old:  "f.Start = r.End", new: "f.Start = r.End - 1",
		pkg: "internal/registry", test: "TestOneSourcesIDsAreAdjacent",
	},
	{
		name: "a series that has an id gets another", invariant: 2,
		file: "internal/storage/pebble/registry.go",
		old:  "fresh, err := s.lookUp(inOrder)", new: "fresh, err := inOrder, error(nil)",
		pkg: "internal/storage/pebble", test: "TestLinearizable",
	},
	{
		name: "a worker that takes over passes rows on beside those of the one before", invariant: 2,
		file: "internal/cache/promote.go",
		old:  "id := promotedID(w, nil)", new: "id := promotedID(w, []metric.ScheduleID{metric.ScheduleID(fence)})",
		pkg: "integration/explore", test: "TestInterleavings/takeover_torn",
	},
	{
		name: "ids are leased twice", invariant: 2,
		file: "internal/storage/pebble/registry.go",
		old:  "s.nextID.Store(int64(leased.End))", new: "",
		pkg: "internal/storage/pebble", test: "TestLinearizable",
	},

	{
		name: "chunks beside a damaged one are packed", invariant: 2,
		file: "internal/rollup/pack.go",
		old:  "whole = err == nil && k.samples.Added()-before == blocks.Count(data)", new: "whole = err != nil || k.samples.Added()-before == blocks.Count(data)",
		pkg: "internal/rollup", test: "TestPackLeaves/damaged",
	},
	{
		name: "chunks are packed while others with lower ids may be on their way", invariant: 2,
		file: "internal/rollup/pack.go",
		old:  "if ch.ID.TimeMs() >= settledMs {", new: "if ch.ID.TimeMs() >= settledMs && false {",
		pkg: "internal/rollup", test: "TestPackLeaves/not_settled",
	},
	{
		name: "a chunk is packed without one before it that has settled meanwhile", invariant: 2,
		file: "internal/rollup/pack.go",
		old:  "if ch.ID.TimeMs() >= settledMs {", new: "if ch.ID.TimeMs() >= settledMs && ch.ID.TimeMs() >= clock.NowMs(p.clk)-p.cache.Timing().Settled().Milliseconds() {",
		pkg: "internal/rollup", test: "TestPackReadsAtOneTime",
	},
	{
		name: "a packed chunk may come before one that it replaces", invariant: 2,
		file: "internal/blocks/packed.go",
		old:  "id[8] |= packedVariant", new: "id[8] &= 0x80",
		pkg: "internal/blocks", test: "TestPackedID",
	},
	{
		name: "what another has packed meanwhile is deleted with the chunks around it", invariant: 2,
		file: "internal/blocks/packed.go",
		old:  "append(out, [2]ID{id, id}), !alone", new: "append(out, [2]ID{id, id}), alone || !alone",
		pkg: "internal/blocks", test: "TestReplacedRanges",
	},
	{
		name: "a packed chunk is stored and what it replaces stays", invariant: 2,
		file: "internal/storage/pebble/write.go",
		old:  "for _, old.ID = range replaced {", new: "for _, old.ID = range replaced[:0] {",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/PackRawIsExact",
	},
	{
		name: "a group that is packed takes the samples of the one before", invariant: 2,
		file: "internal/rollup/pack.go",
		old:  "	k.samples.Reset(group)\n", new: "",
		pkg: "internal/rollup", test: "TestPackBacklog",
	},
	{
		name: "late data that a run has ground stays unpacked", invariant: 6,
		file: "internal/rollup/pack.go",
		old:  "k.done[l.shard] = done.Without(packing.Span{FromMs: l.slice.StartMs, ToMs: l.slice.EndMs})", new: "_ = done",
		pkg: "internal/rollup", test: "TestPack",
	},
	{
		name: "tombstones are written at a place that has passed", invariant: 2,
		file: "internal/cache/writer.go",
		old:  "return f.at != nil && w.age(f) > maxFlush", new: "return false",
		pkg: "internal/cache", test: "TestPlaceThatHasPassed",
	},
	{
		name: "a slow flush keeps its ids", invariant: 2,
		file: "internal/cache/writer.go",
		old:  "return f.at == nil && w.age(f) > maxFlush", new: "return false && f.at == nil && w.age(f) > maxFlush",
		pkg: "internal/cache", test: "TestSlowFlush",
	},

	// 3. No lost mark.
	{
		name: "all marks of the partition are deleted, those that nobody has read too", invariant: 3,
		file: "internal/storage/pebble/write.go",
		old:  "for i := range marks {\n\t\tif err := batch.Delete(indexKey(partition, &marks[i]), nil)", new: "for range marks {\n\t\tif err := batch.DeleteRange(partition, after(partition), nil)",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/History",
	},
	{
		name: "marks are deleted before the rows are stored", invariant: 3,
		file: "internal/rollup/block.go",
		old:  "if err := g.compute(ctx, w, expired); err != nil {", new: "if err := errors.Join(g.compute(ctx, w, expired), g.run.cache.Unmark(ctx, g.lease.Fence, w)); err != nil {",
		pkg: "integration/acceptance", test: "TestModel/CrashAtEveryStep",
	},
	{
		name: "marks are deleted before the rows are passed on", invariant: 3,
		file: "internal/rollup/block.go",
		old:  "err := g.run.cache.Promote(", new: "err := g.run.cache.Unmark(ctx, g.lease.Fence, w); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif err := g.run.cache.Promote(",
		pkg: "integration/acceptance", test: "TestModel/CrashAtEveryStep",
	},
	{
		name: "marks are deleted before the cache", invariant: 3,
		file: "internal/cache/block.go",
		old:  "if err := c.store.DeleteCacheBlock(", new: "if err := c.Unmark(ctx, fence, w); err != nil {\n\t\treturn err\n\t}\n\tif err := c.store.DeleteCacheBlock(",
		pkg: "integration/acceptance", test: "TestModel/CrashAtEveryStep",
	},
	{
		name: "rows are passed on without a mark", invariant: 3,
		file: "internal/cache/promote.go",
		old:  "b.Marks = append(b.Marks, m)", new: "",
		pkg: "integration/acceptance", test: "TestModel/scripts/levels",
	},
	{
		name: "a block that failed is put off without a mark", invariant: 3,
		file: "internal/recovery/recovery.go",
		old:  "r.cache.Put(ctx, fence, w.Bucket(), marks)", new: "r.cache.Put(ctx, fence, w.Bucket(), marks[:0])",
		pkg: "integration/acceptance", test: "TestModel/scripts/failed_blocks",
	},
	{
		name: "a block is put off with its old marks deleted first", invariant: 3,
		file: "internal/recovery/recovery.go",
		old:  "if err := r.cache.Put(", new: "if err := r.cache.Unmark(ctx, fence, w); err != nil {\n\t\treturn err\n\t}\n\tif err := r.cache.Put(",
		pkg: "integration/acceptance", test: "TestModel/CrashWhilePuttingOff",
	},
	{
		name: "a mark stays where the run may have been", invariant: 3,
		file: "internal/cache/marks.go",
		old:  "over := c.timing.Closed(current, clock.NowMs(c.clk))", new: "over := false",
		pkg: "integration/acceptance", test: "TestModel/LateMarkStalls",
	},
	{
		name: "a mark stays where a run has begun while it was written", invariant: 3,
		file: "internal/cache/marks.go",
		old:  "if !over { // a run", new: "if over { // a run",
		pkg: "internal/cache", test: "TestPutOverABeginning",
	},
	{
		name: "late marks are forgotten although their slice's run may have missed them", invariant: 3,
		file: "internal/cache/index.go",
		old:  "if err := w.lookAt(ctx, s, x); err != nil || x.begun {", new: "if err := ctx.Err(); err != nil {",
		pkg: "internal/cache", test: "TestLateMarksOverARunAreKept",
	},
	{
		name: "a worker goes by a look from before the beginning", invariant: 3,
		file: "internal/rollup/run.go",
		old:  "if !state.Over() { // by a clock", new: "if !state.Over() && false { // by a clock",
		pkg: "internal/rollup", test: "TestLookBeforeTheBeginning",
	},
	{
		name: "a slice is completed while others have marks in it", invariant: 3,
		file: "internal/rollup/run.go",
		old:  "err := u.othersEnded(ctx); err != nil {", new: "err := u.othersEnded(ctx); err != nil && !errors.Is(err, ErrShared) {",
		pkg: "internal/rollup", test: "TestShardHeldByAnother",
	},
	{
		name: "who waits for others goes past the mark that was seen last", invariant: 3,
		file: "internal/rollup/run.go",
		old:  "p.left[shard] = first.Key()\n", new: "first.Start++\n\t\t\tp.left[shard] = first.Key()\n",
		pkg: "internal/rollup", test: "TestLooksGoOn",
	},
	{
		name: "a slice is completed before its parts", invariant: 3,
		file: "internal/recovery/missed.go",
		old:  "cmp.Compare(a.Bucket, b.Bucket))", new: "cmp.Compare(b.Bucket, a.Bucket))",
		pkg: "integration/acceptance", test: "TestModel/scripts/levels",
	},

	// 4. The closing race.
	{
		name: "nobody looks at the clock after the write", invariant: 4,
		file: "internal/cache/closing.go",
		old:  "if u.tried && !u.lost && w.over(f.slice(u), now) {", new: "if false {",
		pkg: "integration/acceptance", test: "TestModel/ClosingRace",
	},
	{
		name: "a flush counts as being as old as its beginning", invariant: 4,
		file: "internal/cache/closing.go",
		old:  "now := clock.NowMs(w.cache.clk)\n\tf.checkedMs = now", new: "now := min(f.startedMs, clock.NowMs(w.cache.clk))\n\tf.checkedMs = now",
		pkg: "integration/acceptance", test: "TestModel/LateMarkStalls",
	},
	{
		name: "a run begins when its slice ends", invariant: 4,
		file: "internal/cache/cache.go",
		old:  "return nowMs >= s.EndMs+t.Delay.Milliseconds()", new: "return nowMs >= s.EndMs",
		pkg: "integration/acceptance", test: "TestModel/scripts/levels",
	},
	{
		name: "a sample is on time at the end of the grace", invariant: 4,
		file: "internal/cache/cache.go",
		old:  "return nowMs >= s.EndMs+t.Grace.Milliseconds()", new: "return nowMs > s.EndMs+t.Grace.Milliseconds()",
		pkg: "integration/acceptance", test: "TestModel/scripts/late_data",
	},
	{
		name: "a seal that ends during the run stays", invariant: 4,
		file: "internal/cache/writer.go",
		old:  "if lerr != nil || x.begun {", new: "if false {",
		pkg: "internal/cache", test: "TestSealOverTheRunIsTakenBack",
	},

	// 5. One winner.
	{
		name: "the embedded store takes a superseded fence", invariant: 5,
		file: "internal/storage/pebble/write.go",
		old:  "err := s.fences.check(f); err != nil {", new: "err := s.fences.check(f); err != nil && f < 0 {",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/HigherFenceWins",
	},
	{
		name: "fences do not ascend", invariant: 5,
		file: "internal/storage/pebble/write.go",
		old:  "fence := max(s.fences.last+1, storage.Fence(now.UnixMicro()))", new: "fence := storage.Fence(now.UnixMicro())",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/FenceIncreases",
	},
	{
		name: "whoever has a shard's number renews its lease", invariant: 5,
		file: "internal/storage/pebble/write.go",
		old:  "held.Owner != l.Owner || held.Fence != l.Fence ||", new: "",
		pkg: "internal/storage/pebble", test: "TestConformanceInMemory/LeaseRenewed",
	},
	{
		name: "a shard is leased to two", invariant: 5,
		file: "internal/storage/pebble/write.go",
		old:  "l.Owner != owner && l.ExpiresMs > now.UnixMilli()", new: "l.Owner != owner && l.ExpiresMs < 0",
		pkg: "internal/storage/pebble", test: "TestLinearizable",
	},
	{
		name: "on a cluster a run writes at the time of the write", invariant: 5,
		file: "internal/storage/cassandra/timestamps.go",
		old:  "return int64(f), nil", new: "f = 0",
		pkg: "internal/storage/cassandra", test: "TestTimestampOfAFence",
	},
	{
		name: "where the last write wins, a run writes at the time of the write", invariant: 5,
		file: "internal/storage/storagetest/lww.go",
		old:  "if f == 0 {\n\t\ts.us = m.next()", new: "if f >= 0 {\n\t\ts.us = m.next()",
		pkg: "internal/storage/storagetest", test: "TestLWWModelConformance/HigherFenceWins",
	},
	{
		name: "a lease that has ended counts", invariant: 5,
		file: "internal/shards/lease.go",
		old:  "if monotonic().Before(*l.until.Load()) {", new: "if monotonic().Before(*l.until.Load()) || true {",
		pkg: "internal/shards", test: "TestHoldOfAStoppedProcess",
	},
	{
		name: "rows are passed on without the fence", invariant: 5,
		file: "internal/rollup/block.go",
		old:  "g.run.cache.Promote(ctx, g.lease.Fence,", new: "g.run.cache.Promote(ctx, 0,",
		pkg: "internal/rollup", test: "TestBlocksSideBySide",
	},
	{
		name: "rows are stored without the fence", invariant: 5,
		file: "internal/rollup/block.go",
		old:  "g.run.store.WriteRollups(ctx, g.lease.Fence,", new: "g.run.store.WriteRollups(ctx, 0,",
		pkg: "internal/rollup", test: "TestFencedOff",
	},

	// 6. Cost.
	{
		name: "each block is read twice", invariant: 6,
		file: "internal/rollup/block.go",
		old:  "err = g.run.cache.Load(ctx, w, in.add)", new: "err = errors.Join(g.run.cache.Load(ctx, w, in.add), g.run.cache.Load(ctx, w, in.add))",
		pkg: "integration/acceptance", test: "TestModel/QueryCounts",
	},
	{
		name: "each shard's index is read twice", invariant: 6,
		file: "internal/rollup/run.go",
		old:  "u.reached.ended[shard] = err == nil", new: "",
		pkg: "integration/acceptance", test: "TestModel/QueryCounts",
	},
	{
		name: "each mark is work of its own", invariant: 6,
		file: "internal/cache/work.go",
		old:  "len(w.Marks) < maxMarksPerWork {", new: "len(w.Marks) < 1 {",
		pkg: "integration/acceptance", test: "TestModel/QueryCounts",
	},
	{
		name: "a seal counts flushes instead of chunks", invariant: 6,
		file: "internal/cache/writer.go",
		old:  "b.chunks += u.chunks()", new: "b.chunks++",
		pkg: "integration/acceptance", test: "TestModel/LargeCommit",
	},
	{
		name: "packing begins although a run is due", invariant: 6,
		file: "internal/rollup/pack.go",
		old:  "NextDue(ctx, nil); due || err != nil", new: "NextDue(ctx, nil); !due && due || err != nil",
		pkg: "internal/rollup", test: "TestPackWaitsForRuns",
	},
	{
		name: "what was packed is looked at again by the next process", invariant: 6,
		file: "internal/rollup/pack.go",
		old:  "done = kept.Shard(shard)", new: "done = kept.Shard(1 << 20)",
		pkg: "internal/rollup", test: "TestPackBacklog",
	},
	{
		name: "the record leaves out second reads", invariant: 6,
		file: "internal/rollup/run.go",
		old:  "int(u.blockQueries.Load())", new: "rec.Blocks",
		pkg: "integration/acceptance", test: "TestModel/DamagedCache",
	},

	// 7. Bounded.
	{
		name: "a run gathers all blocks of the index", invariant: 7,
		file: "internal/rollup/shard.go",
		old:  "for w, err := range s.cache.Read(ctx, s.partition) {",
		new: `
		var all []*cache.Work
		for w, err := range s.cache.Read(ctx, s.partition) {
			if err != nil {
				return others, err
			}
			all = append(all, w)
		}
		for _, w := range all {
			err := ctx.Err()`,
		pkg: "internal/rollup", test: "TestIndexIsReadAsBlocksAreGround",
	},
	{
		name: "one client takes all that may wait", invariant: 7,
		file: "internal/ingest/commit.go",
		old:  "waits > 0 && waits+n", new: "waits < 0 && waits+n",
		pkg: "internal/ingest", test: "TestPendingOfOneClient",
	},
	{
		name: "ingest takes more than may wait", invariant: 7,
		file: "internal/ingest/commit.go",
		old:  "in.pending > 0 && in.pending+n > in.opts.MaxPending", new: "n > in.opts.MaxPending",
		pkg: "internal/ingest", test: "TestPendingIsBounded",
	},
	{
		name: "all marks of a block are gathered", invariant: 7,
		file: "internal/cache/work.go",
		old:  "len(w.Marks) < maxMarksPerWork {", new: "true {",
		pkg: "internal/cache", test: "TestFloodOfMarksIsReadInParts",
	},
	{
		name: "all late schedules of a slice are remembered", invariant: 7,
		file: "internal/cache/index.go",
		old:  "if len(x.late)+x.named < maxRememberedLate {", new: "if len(x.late) >= 0 {",
		pkg: "internal/cache", test: "TestLateSchedulesAreForgotten",
	},
}
