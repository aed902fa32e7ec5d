# Go and make are all that is needed; linters come through `go run pkg@version`,
# so that everyone runs the same ones and nothing is installed.

GO            ?= go
GOFUMPT       := mvdan.cc/gofumpt@v0.12.0
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
NFPM          := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
CYCLONEDX     := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

# What make release builds: the version of the last tag, for these platforms.
VERSION       ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null | sed 's/^v//')
PLATFORMS     ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64

# Assertions of the numbered invariants are compiled in only under this tag.
TAGS          := invariants

# The module itself comes last. Others are below it, for tests whose requirements are not to be
# the module's, and ./... does not reach them.
MODULES       := $(shell find . -name go.mod -not -path './.*' -exec dirname {} \; | sort -r)

FUZZTIME      ?= 30s
ARGS          ?=
SOAK          ?= 10m
SEED          ?=
LIVES         ?= 1000

# Runs the tests of a target; integration/tiers/targets.go says what is in which. go run passes no signals on, so the
# program takes the place of the recipe's shell: what ends make ends the tests too. As with go run, they use this Go.
TIERS          = export CGO_ENABLED=0 PATH="$$($(GO) env GOROOT)/bin:$$PATH"; \
	$(GO) build -o bin/ ./integration/tiers && exec bin/tiers

.DEFAULT_GOAL := help

.PHONY: run
run: ## Serve on 127.0.0.1:9095 with demo data (ARGS="--flag ..." adds flags)
	$(GO) run ./cmd/quern serve --demo $(ARGS)

.PHONY: build
build: ## Build bin/quern, bin/quern-agent, bin/ingest and bin/aggregator
	$(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: release
release: ## Build packages, archives, checksums and lists of parts into dist (VERSION=0.1.0)
	NFPM=$(NFPM) CYCLONEDX=$(CYCLONEDX) deploy/release "$(VERSION)" $(PLATFORMS)

.PHONY: page
page: ## Build the page from web/ into internal/api/page/dist (needs Node.js and npm)
	cd web && npm ci && npm run check && npm run build

.PHONY: pictures
pictures: ## Take the README's pictures of the page into docs/pictures (needs Chromium)
	$(GO) -C integration/page test -count=1 -run '^TestPictures$$' . -args -pictures $(CURDIR)/docs/pictures

# Tier one. The targets test-… are tier two: CONTRIBUTING.md says when to run what.
.PHONY: test
test: ## What every change must pass: minutes, the same answer every time
	$(TIERS) one

.PHONY: test-cluster
test-cluster: ## Kill, slow down and refuse clusters of three nodes
	$(TIERS) cluster

.PHONY: test-stores
test-stores: ## Test the store over Cassandra's own time and tombstones
	$(TIERS) stores

.PHONY: test-serve
test-serve: ## Test the programs on one machine: kills, full disks, wrong clocks, strangers
	$(TIERS) serve

.PHONY: test-page
test-page: ## Walk through every view of the page in Chromium, and test that it is built from web/
	$(TIERS) page

.PHONY: test-programs
test-programs: ## Take data from Prometheus, nginx, Nagios, a node exporter, collectd and a StatsD client
	$(TIERS) programs

.PHONY: test-release
test-release: ## Build a release twice, and install, upgrade, remove and purge it in a clean Debian
	$(TIERS) release

.PHONY: test-rhq
test-rhq: ## Test the migration of an RHQ server
	$(TIERS) rhq

.PHONY: test-breaks
test-breaks: ## Break each invariant on purpose, and see that tests find it
	$(TIERS) breaks

.PHONY: test-sweeps
test-sweeps: ## Go through every step, byte and seed of what make test samples
	$(TIERS) sweeps

.PHONY: test-costs
test-costs: ## Test that time and memory grow no faster than the input; wants an idle machine
	$(TIERS) costs

.PHONY: test-race
test-race: ## Test everything under the race detector
	$(TIERS) race

.PHONY: test-all
test-all: ## Run all of the above, one after another
	$(TIERS) all

# Outside integration no test needs more than Go, apart from those that -short leaves out. The
# acceptance tests run on the model and the embedded store.
UNIT_PACKAGES  = $$($(GO) list ./... | grep -v /integration) ./integration/acceptance ./integration/tiers

# Without -count=1 and the race detector: what has not changed has passed already.
.PHONY: check
check: ## Lint what differs from upstream, and test what needs no server and no other program, in minutes
	@$(MAKE) --no-print-directory lint SINCE="$$(git merge-base HEAD '@{upstream}' 2>/dev/null || echo HEAD)"
	$(GO) vet -tags $(TAGS) ./...
	$(GO) test -short -tags $(TAGS) $(UNIT_PACKAGES)

.PHONY: soak
soak: ## Live through faults for SOAK (10m) and LIVES (1000) with SEED or another, and explore all orders
	@seed=$(SEED); set -ex; \
	$(GO) test -count=1 -p 1 -tags $(TAGS) -timeout 0 -v -run '^TestFaults$$' ./integration ./integration/cluster \
		-args -faults.length=$(SOAK) -faults.seed=$${seed:-$$(date +%s)}; \
	$(GO) test -count=1 -tags $(TAGS) -timeout 0 -v -run '^TestAgent$$' ./integration/gate -args -agent.faults=240 -agent.seed=$${seed:-0}; \
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
# As for the tests, which then find compiled what the linters read.
lint: export CGO_ENABLED=0
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
