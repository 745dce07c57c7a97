# code-execution-sandbox: from a clone to a running server with `make run`.
#
# Every step looks first at what is there and does only what is missing. Steps
# that need root use sudo by themselves when make is not run as root; Go always
# builds as the user who typed make.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Go is often installed where no PATH of a root shell looks.
export PATH := $(PATH):/usr/local/go/bin
# Debian's Go is set to "local", and would not fetch the version go.mod asks for.
export GOTOOLCHAIN ?= auto
# The version is ours to stamp; Go's own way fails in a clone of another user.
export GOFLAGS ?= -buildvcs=false
ifeq ($(HOME),)
export HOME := $(shell getent passwd $$(id -u) | cut -d: -f6)
endif

NAME    := code-execution-sandbox
BIN     := bin/$(NAME)
PKG     := ./cmd/$(NAME)
IMAGE   := $(NAME)-runtime
VERSION ?= $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# CONFIG=path/to/config.toml is passed on; without it the defaults hold.
CONFIG  ?=
FLAGS   := $(if $(CONFIG),--config $(CONFIG))
SUDO    := $(if $(filter 0,$(shell id -u)),,sudo)

GOLANGCI_VERSION := v2.15.0
NFPM_VERSION := v2.45.2
CONTAINERD2_VERSION := v2.3.7
CONTAINERD2 := bin/tools/containerd-$(CONTAINERD2_VERSION)
RUNC_VERSION := v1.5.3
RUNC := bin/tools/runc-$(RUNC_VERSION)
GVISOR_VERSION := v0.0.0-20260905035102-160fafc42237
GVISOR := bin/tools/gvisor-$(GVISOR_VERSION)
GOLANGCI := bin/tools/golangci-lint-$(GOLANGCI_VERSION)
KUBECTL_VALIDATE_VERSION := v0.0.4
KUBECTL_VALIDATE := bin/tools/kubectl-validate-$(KUBECTL_VALIDATE_VERSION)

# Packages whose tests need neither root nor containerd.
UNIT ?= ./cmd/... ./config/... ./oci/... ./test $(filter-out ./internal/runner/... ./internal/daemon/...,$(patsubst %/,./%/...,$(wildcard internal/*/)))
TESTFLAGS ?=
FUZZTIME ?= 30s

## Run it

.PHONY: run
run: import env ## Everything from a fresh clone to a serving server (CONFIG=FILE here and below: settings)
	@echo "run: an entry for your MCP client; other clients: $(BIN) client-config --help"
	@# The token itself only before a person's eyes: elsewhere this is a log.
	@token=; [ ! -t 1 ] || token=--with-token; $(BIN) client-config miranda $$token $(FLAGS)
	@$(MAKE) --no-print-directory serve

.PHONY: setup
setup: ## Install and start what this host lacks: Docker, containerd, runc
	@systemd/setup.sh

.PHONY: stop-docker
stop-docker: ## Stop the daemons that setup started itself (hosts without systemd)
	@systemd/setup.sh stop

.PHONY: build
build: go ## Build bin/code-execution-sandbox, one static binary
	@echo "build: $(BIN) $(VERSION)"
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) $(PKG)
	@$(call assert_static,$(BIN))

.PHONY: build-all
build-all: go ## Build for linux/amd64 and linux/arm64
	@$(MAKE) --no-print-directory build-linux ARCH=amd64
	@$(MAKE) --no-print-directory build-linux ARCH=arm64

# ARCH is the architecture of another host.
.PHONY: build-linux
build-linux: go
	@echo "build: $(BIN)-linux-$(ARCH) $(VERSION)"
	@CGO_ENABLED=0 GOOS=linux GOARCH=$(ARCH) go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)-linux-$(ARCH) $(PKG)
	@$(call assert_static,$(BIN)-linux-$(ARCH))

# No program interpreter in the ELF header: nothing of the host is linked in.
assert_static = if LC_ALL=C ldd $(1) 2>&1 | grep -q '=>'; then echo "build: $(1) is not static" >&2; exit 1; fi

# What the image is built from. It carries a sum of it, so that a build without
# a change is skipped; FORCE=1 builds it anew all the same, with today's packages.
IMAGE_INPUTS := image/Dockerfile image/compose.yaml image/describe.py $(sort $(wildcard image/launcher/* image/whisper/* image/whisper/local/*))

# PROFILE=slim makes an image with bash and Python alone, beside the full one.
PROFILE ?= full
image_tag = $(IMAGE):$(if $(filter slim,$(1)),slim,latest)
# WITH_WHISPER=0 leaves out faster-whisper, the one part that needs PyPI. Unless
# it is said, an image that is there without it is left without it.
image_label = $(shell systemd/docker.sh image inspect -f '{{index .Config.Labels "$(NAME).$(2)"}}' $(call image_tag,$(1)) 2>/dev/null)
export WITH_WHISPER

.PHONY: docker-build
docker-build: setup ## Build the runtime image (PROFILE=full|slim, WITH_WHISPER=1|0, FORCE=1: with fresh packages)
	@$(call build_image,$(PROFILE))

define build_image
	whisper=$(if $(filter slim,$(1)),0,$${WITH_WHISPER:-$(or $(call image_label,$(1),whisper),1)}); \
	inputs=$$(cd image && { echo $(1) $$whisper; sha256sum $(patsubst image/%,%,$(filter-out %/local,$(IMAGE_INPUTS))); } | sha256sum | cut -c1-16); \
	if [ "$(call image_label,$(1),inputs)" = "$$inputs" ] && [ -z "$(FORCE)" ]; then exit 0; fi; \
	echo "docker-build: $(call image_tag,$(1))"; \
	base=$$(image/base.sh $(if $(FORCE),--fresh)); \
	export TAG=$(lastword $(subst :, ,$(call image_tag,$(1)))) PROFILE=$(1) WITH_WHISPER=$$whisper BASE=$$base INPUTS=$$inputs; \
	systemd/docker.sh compose -p $(NAME) -f image/compose.yaml build $(if $(FORCE),--no-cache)
endef

.PHONY: import
import: build docker-build ## Import the runtime image from Docker into containerd
	@$(SUDO) $(BIN) image import $(FLAGS)

.PHONY: env
env: ## Write .env with a random token, if there is none
	@if [ ! -e .env ]; then \
		echo "env: writing .env with a new token"; \
		umask 077; \
		printf 'SANDBOX_MCP_TOKEN=%s\n' "$$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')" > .env; \
	fi

.PHONY: apparmor
apparmor: ## Load the sandboxes' AppArmor profile, where the kernel has AppArmor
	@systemd/apparmor.sh

.PHONY: serve
serve: apparmor ## Serve with the binary and the image that are there
	@$(SUDO) $(BIN) serve $(FLAGS)

.PHONY: check
check: build ## Say whether this host is fit, and what to do where it is not
	@$(SUDO) $(BIN) check $(FLAGS)

## Keep it

.PHONY: install
install: build docker-build ## Install and start it as a systemd service on this host
	@$(SUDO) env WAIT=$(or $(WAIT),180) systemd/install.sh install $(BIN)

.PHONY: uninstall
uninstall: ## Remove the service, its image and every trace of it from this host
	@$(SUDO) systemd/install.sh uninstall

.PHONY: deploy
deploy: ## The same on another host: HOST=user@host (IMAGE_FROM=build|keep|archive.tar); a version that fails is taken back
	@[ -n "$(HOST)" ] || { echo "deploy: say where: make deploy HOST=user@host" >&2; exit 1; }
	@systemd/deploy.sh "$(HOST)"

# ARCH=arm64 makes it for such a host. A version begins with a digit there.
.PHONY: package
package: ARCH ?= $(shell go env GOARCH)
package: go ## Make a Debian package in bin
	@$(MAKE) --no-print-directory build-linux ARCH=$(ARCH)
	@version='$(VERSION)'; version=$${version#v}; case $$version in [0-9]*.*) ;; *) version=0~$$version ;; esac; \
	ARCH=$(ARCH) VERSION=$$version BINARY=$(BIN)-linux-$(ARCH) \
		go run github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION) package --config systemd/nfpm.yaml --packager deb --target bin/

## Work on it

# The test binaries run as root, the compiler does not. Tests build the binary
# they need: with the user's Go and caches. A variable that a test knows is
# handed on.
AS_ROOT = $(if $(SUDO),-exec "sudo env 'PATH=$(PATH)' GOTOOLCHAIN=$(GOTOOLCHAIN) 'GOFLAGS=$(GOFLAGS)' \
	GOCACHE=$(shell go env GOCACHE) GOMODCACHE=$(shell go env GOMODCACHE) \
	$(foreach name,CI CES_BINARY CES_CONTAINERD_BIN CES_LONG CES_RACE CES_RUNTIME CES_RUNTIME_BINARY CES_SLOW NODE_EXTRA_CA_CERTS SOAK_CALLS FAULT_KILLS,$(if $($(name)),$(name)=$($(name))))")

# What tests call beside what run needs: pgrep, npm for real MCP clients, and
# what operators put around the server.
.PHONY: test-setup
test-setup: go setup
	@$(call build_image,slim)
	@$(call build_image,full)
	@systemd/setup.sh program pgrep procps
	@systemd/setup.sh program npm npm
	@systemd/setup.sh unpack bin/tools/unpacked prometheus prometheus
	@systemd/setup.sh unpack bin/tools/unpacked haproxy haproxy
	@systemd/setup.sh unpack bin/tools/unpacked nginx nginx nginx-core nginx-light

# One package at a time: each has a containerd and the processors for itself.
# -count=1: a result of before says nothing. Go does not see the image and the
# daemons change, nor the variables that TestMain reads.
GOTEST = go test $(AS_ROOT) -count=1 -p 1 -timeout 40m $(TESTFLAGS)

.PHONY: test
test: test-setup ## The whole test suite; sets up the host like run
	@echo "test: every package, as root"
	@$(GOTEST) ./...

.PHONY: race
race: export CES_RACE := 1
race: test-setup ## The whole test suite under the race detector
	@systemd/setup.sh program gcc gcc libc6-dev
	@echo "race: every package, as root"
	@CGO_ENABLED=1 $(GOTEST) -race ./...

.PHONY: unit
unit: go ## The tests that need neither root nor containerd
	@echo "unit: packages that need no root"
	@go test $(TESTFLAGS) $(UNIT)

.PHONY: test-containerd2
test-containerd2: export CES_CONTAINERD_BIN = $(abspath $(CONTAINERD2))
test-containerd2: test-setup $(CONTAINERD2)/containerd ## What rests on containerd, on a 2.x built from its module
	@echo "test-containerd2: containerd $(CONTAINERD2_VERSION)"
	@$(GOTEST) ./image ./internal/daemon ./test/integration

$(CONTAINERD2)/containerd:
	@echo "tools: building containerd $(CONTAINERD2_VERSION); takes minutes"
	@mkdir -p $(@D)
	@cd / && CGO_ENABLED=0 GOBIN=$(abspath $(@D)) go install github.com/containerd/containerd/v2/cmd/containerd@$(CONTAINERD2_VERSION) \
		github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@$(CONTAINERD2_VERSION)

$(RUNC)/runc:
	@echo "tools: building runc $(RUNC_VERSION)"
	@pkg-config --exists libseccomp 2>/dev/null || systemd/setup.sh program libseccomp gcc libc6-dev pkg-config libseccomp-dev
	@mkdir -p $(@D)
	@cd / && CGO_ENABLED=1 GOBIN=$(abspath $(@D)) go install -tags seccomp github.com/opencontainers/runc@$(RUNC_VERSION)

$(GVISOR)/runsc:
	@echo "tools: building gVisor $(GVISOR_VERSION); takes minutes"
	@mkdir -p $(@D)
	@cd / && CGO_ENABLED=0 GOBIN=$(abspath $(@D)) go install gvisor.dev/gvisor/shim@$(GVISOR_VERSION)
	@mv $(@D)/shim $(@D)/containerd-shim-runsc-v1
	@cd / && CGO_ENABLED=0 GOBIN=$(abspath $(@D)) go install gvisor.dev/gvisor/runsc@$(GVISOR_VERSION)

.PHONY: test-escape
test-escape: test-setup ## Hostile programs in real sandboxes
	@$(GOTEST) -v ./test/escape

.PHONY: test-mutation
test-mutation: test-setup ## Each protection taken away must turn its rows red
	@$(GOTEST) -v -run '^TestMutations' ./test/escape -sweep

.PHONY: test-faults
test-faults: test-setup ## Whatever dies, stalls or floods
	@$(GOTEST) -v ./test/faults

.PHONY: test-operate
test-operate: test-setup ## Prometheus, HAProxy and nginx around real servers
	@$(GOTEST) -v ./test/operate

.PHONY: test-mcp
test-mcp: test-setup ## Real MCP clients and the conformance suite (CES_LONG=1: long calls too)
	@$(GOTEST) -v ./test/conformance

# CES_HOST=core: what every change has to hold, in minutes.
.PHONY: test-host
test-host: export CES_HOST ?= whole
test-host: export CES_TOOLS = $(abspath bin/tools)
test-host: test-setup ## A virtual machine from power-on to power-off: install, calls, faults, upgrades, escape suite, other runtimes, uninstall; log in bin/host
	@[ "$$CES_HOST" = core ] || $(MAKE) --no-print-directory $(CONTAINERD2)/containerd $(RUNC)/runc $(GVISOR)/runsc
	@test/host/vm.sh build
	@go test -count=1 -timeout 90m -v $(TESTFLAGS) ./test/host

.PHONY: soak
soak: export SOAK_CALLS ?= 10000
soak: test-setup ## SOAK_CALLS (10000) mixed calls from 4 clients
	@$(GOTEST) -v -run '^TestSoak$$' ./test/faults

.PHONY: bench
bench: build docker-build ## Side by side with docker run, runc run and the bare interpreter; result in bin/bench
	@go build -o bin/tools/bench ./test/bench
	@$(SUDO) env "PATH=$(PATH)" bin/tools/bench -server $(BIN) -out bin/bench $(BENCHFLAGS)

.PHONY: fuzz
fuzz: go ## Every fuzz test for FUZZTIME (30s)
	@for pkg in $$(go list ./...); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "fuzz: $$pkg $$f for $(FUZZTIME)"; \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

GODIRS  := $(wildcard cmd config image internal oci systemd test)
SHFILES := $(wildcard image/*.sh image/*/*.sh systemd/*.sh systemd/package/* test/host/*.sh) .ci/run

.PHONY: lint
lint: go tools ## gofmt, go vet, golangci-lint, shellcheck
	@echo "lint: gofmt"
	@bad=$$(gofmt -l $(GODIRS)); [ -z "$$bad" ] || { echo "not gofmt-clean (make fmt):" $$bad >&2; exit 1; }
	@echo "lint: golangci-lint $(GOLANGCI_VERSION)"
	@$(GOLANGCI) run
	@echo "lint: kubectl-validate"
	@$(KUBECTL_VALIDATE) --version 1.30 systemd/cluster/kubernetes.yaml
	@echo "lint: shellcheck"
	@shellcheck -S warning $(SHFILES)

.PHONY: fmt
fmt: go ## Format the Go code
	@gofmt -l -w $(GODIRS)

.PHONY: tools
tools: go $(GOLANGCI) $(KUBECTL_VALIDATE) ## Get the linters, pinned; the first time takes minutes
	@systemd/setup.sh program shellcheck shellcheck

# Built with the Go of this module: a linter of an older Go refuses it.
$(GOLANGCI):
	@echo "tools: building golangci-lint $(GOLANGCI_VERSION); takes minutes"
	@mkdir -p $(@D)
	@GOTOOLCHAIN=$$(go env GOVERSION)+auto GOBIN=$(abspath $(@D)) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(@D)/golangci-lint $@

# With the schemas of Kubernetes in it: asks no cluster.
$(KUBECTL_VALIDATE):
	@echo "tools: building kubectl-validate $(KUBECTL_VALIDATE_VERSION); takes minutes"
	@mkdir -p $(@D)
	@cd / && GOBIN=$(abspath $(@D)) go install sigs.k8s.io/kubectl-validate@$(KUBECTL_VALIDATE_VERSION)
	@mv $(@D)/kubectl-validate $@

.PHONY: clean
clean: ## Remove what was built; .env, the images and the tools stay
	@rm -rf $(BIN) $(BIN)-linux-*

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^## / { printf "\n%s\n", substr($$0, 4) } /^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: go
go:
	@command -v go >/dev/null || { echo "go: not found; install Go 1.21 or newer (Debian 13, Ubuntu 24.04: apt-get install golang-go; else: https://go.dev/doc/install)" >&2; exit 1; }
	@v=$$(cd / && go env GOVERSION); case $$v in go1.[0-9]|go1.[0-9].*|go1.1[0-9]*|go1.20*) \
		echo "go: $$v is too old to fetch the version that go.mod asks for; install Go 1.21 or newer (https://go.dev/doc/install)" >&2; exit 1;; esac
