# Go and make are all that is needed; linters come through `go run pkg@version`,
# so that everyone runs the same ones and nothing is installed.

GO            ?= go
GOFUMPT       := mvdan.cc/gofumpt@v0.12.0
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Assertions of the numbered invariants are compiled in only under this tag.
TAGS          := invariants

# The module itself comes last. Others are below it, for tests whose requirements are not to be
# the module's, and ./... does not reach them.
MODULES       := $(shell find . -name go.mod -not -path './.*' -exec dirname {} \; | sort -r)
NESTED        := $(filter-out .,$(MODULES))

# Per package. A store under the race detector is about ten times slower than
# without, so this is far above what a package takes and only catches a hang.
TEST_TIMEOUT  ?= 50m
FUZZTIME      ?= 30s
ARGS          ?=
SOAK          ?= 10m
SEED          ?=
LIVES         ?= 1000
# 0 leaves out the tests with programs of others, which come from Debian packages.
PROGRAMS      ?= 1

# -count=1, because the integration tests build the program themselves: go test does
# not see that they depend on it, and would give an old result for new code. -vet=off, because
# `make test` has run all of vet before.
TESTFLAGS      = -count=1 -vet=off -tags $(TAGS) -timeout $(TEST_TIMEOUT)

# The race detector needs cgo, and cgo a C compiler with its headers. A machine
# without one still tests everything, just without the detector.
CC_PROBE       = printf '\#include <stdlib.h>\n\#include <pthread.h>\nint main(void){return 0;}\n' \
                 | $$($(GO) env CC) -x c -o /dev/null - >/dev/null 2>&1

# `make test` runs these without the race detector, which makes them about ten times slower, and all others with it.
# They go through many cases or seeds, damage each byte in turn, stop before each step, or measure memory, and do so one
# at a time. What they test is also run by other tests, with the detector: integration/acceptance by TestModel, the
# stores by their conformance suite, and so on. A name stands for the tests of that name in all packages.
SWEEPS        := \
	TestAcceptance TestPebble TestServerAtRandom TestFleetAtRandom TestInterleavings TestMutants \
	TestSelectorsOfAQueryShareItsLimit TestMadeLabelSetsCount TestLabelsAreWeighedNearly TestRollupsAreAsRaw \
	TestStreamsOfManySeries TestDenseSlicesAreReadInParts TestLateIDsCopyNoLists TestCapturesWeigh TestAdmitIsLinear \
	TestPointsAgainstSamples TestReadsShareMemory TestOpenSurvivesErrors \
	TestDamagedBlocksOfDocuments TestDamagedBlocksExpire TestDamagedBlockOfRollups TestDamagedCacheBlockIsDeleted \
	TestEachFileOfAStore TestPowerLoss TestCrashAfterEachOperation
space         := $() $()
SWEEP          = $(subst $(space),|,$(strip $(SWEEPS)))
SWEEP_PACKAGES = $$(grep -slE '^func ($(SWEEP))\(' $$($(GO) list -f '{{.Dir}}/*_test.go' ./...) | xargs -n 1 dirname | sort -u)

.DEFAULT_GOAL := help

.PHONY: run
run: ## Serve on 127.0.0.1:9095 with demo data (ARGS="--flag ..." adds flags)
	$(GO) run ./cmd/quern serve --demo $(ARGS)

.PHONY: build
build: ## Build bin/quern, bin/ingest and bin/aggregator
	$(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: page
page: ## Build the page from web/ into internal/page/dist (needs Node.js and npm)
	cd web && npm ci && npm run check && npm run build

.PHONY: pictures
pictures: ## Take the README's pictures of the page into docs/pictures (needs Chromium)
	$(GO) -C integration/page test -count=1 -run '^TestPictures$$' . -args -pictures $(CURDIR)/docs/pictures

.PHONY: test
test: ## Vet and test everything, with assertions and the race detector
	@race=-race; \
	if [ "$$($(GO) env CGO_ENABLED)" != 1 ] || ! { $(CC_PROBE); }; then \
		race=; export CGO_ENABLED=0; \
		echo "note: no working C compiler, so the tests run without the race detector"; \
	fi; \
	if [ "$(PROGRAMS)" = 0 ]; then echo "note: PROGRAMS=0, so no test runs with programs of others"; fi; \
	set -ex; \
	export QUERN_TEST_PROGRAMS=$(PROGRAMS) QUERN_TEST_BUILT=$$(mktemp -d); \
	trap 'rm -rf "$$QUERN_TEST_BUILT"' EXIT; \
	for module in $(MODULES); do $(GO) -C $$module vet -tags $(TAGS) ./...; done; \
	for module in $(NESTED); do $(GO) -C $$module test $(TESTFLAGS) ./...; done; \
	if [ -z "$$race" ]; then $(GO) test $(TESTFLAGS) ./...; exit; fi; \
	$(GO) test $(TESTFLAGS) -run '^($(SWEEP))$$' $(SWEEP_PACKAGES); \
	$(GO) test $(TESTFLAGS) $$race -skip '^($(SWEEP))$$' ./...

# Outside integration no test needs more than Go, apart from those that -short leaves out. The
# acceptance tests run on the model and the embedded store.
UNIT_PACKAGES  = $$($(GO) list ./... | grep -v /integration) ./integration/acceptance

# Without -count=1 and the race detector: what has not changed has passed already.
.PHONY: check
check: ## Lint what differs from upstream, and test what needs no server and no other program, in minutes
	@$(MAKE) --no-print-directory lint SINCE="$$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)"
	$(GO) vet -tags $(TAGS) ./...
	$(GO) test -short -tags $(TAGS) $(UNIT_PACKAGES)

.PHONY: soak
soak: ## Live through faults for SOAK (10m) and LIVES (1000) with SEED or another, and explore all orders
	@seed=$(SEED); set -ex; \
	$(GO) test -count=1 -tags $(TAGS) -timeout 0 -v -run '^TestFaults$$' ./integration ./integration/cluster \
		-args -faults.length=$(SOAK) -faults.seed=$${seed:-$$(date +%s)}; \
	$(GO) test -count=1 -tags $(TAGS) -timeout 0 ./integration/explore -args -whole; \
	$(GO) test -count=1 -tags $(TAGS) -timeout 0 -run 'AtRandom$$' ./integration/acceptance \
		-args -acceptance.seeds=$(LIVES) -acceptance.seed=$${seed:-$$(date +%s)}

.PHONY: bench
bench: ## Run the benchmark program (ARGS="..." passes arguments)
	$(GO) run ./bench $(ARGS)

.PHONY: bench-cassandra
bench-cassandra: ## Run it over a Cassandra that it starts (ARGS="...")
	$(GO) run ./bench -store cassandra $(ARGS)

.PHONY: bench-peers
bench-peers: ## Run Quern beside VictoriaMetrics and Prometheus (ARGS="...")
	$(GO) run ./bench/peers $(ARGS)

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | \
	while IFS=: read -r file _ func; do \
		pkg=$$(dirname "$$file"); name=$${func#func }; \
		echo "fuzz $$pkg $$name"; \
		$(GO) test -tags $(TAGS) -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null || exit 1; \
	done

.PHONY: lint
lint: ## Check the formatting and run the linters (SINCE=main lints only packages that differ from main)
	@unformatted=$$($(GO) run $(GOFUMPT) -l .) || exit 1; \
	if [ -n "$$unformatted" ]; then \
		echo "not gofumpt-clean (make fmt puts it right):"; echo "$$unformatted"; exit 1; \
	fi
	@set -e; for module in $(MODULES); do (cd $$module; \
		packages=./...; \
		if [ -n "$(SINCE)" ]; then \
			packages=$$({ git diff --name-only --relative --diff-filter=d $(SINCE) -- '*.go'; git ls-files --others --exclude-standard -- '*.go'; } \
				| sed 's|[^/]*$$||; s|^|./|' | sort -u | while read -r dir; do \
					[ "$$(cd "$$dir" && $(GO) env GOMOD)" != "$$PWD/go.mod" ] || echo "$$dir"; done); \
			[ -n "$$packages" ] || exit 0; \
		fi; \
		set -x; $(GO) run $(GOLANGCI_LINT) run $$packages); done

.PHONY: download
download: ## Fetch the modules that everything is built from
	set -ex; for module in $(MODULES); do $(GO) -C $$module mod download; done

.PHONY: fmt
fmt: ## Format all Go files
	$(GO) run $(GOFUMPT) -w .

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1|\2/' | \
	while IFS='|' read -r target text; do printf '  %-22s %s\n' "$$target" "$$text"; done
