# Build, check and try out the operator. `make help` lists the targets.
#
# Everything the targets need beyond Go, make and git is built from pinned sources into bin/ on first use.

SHELL = /usr/bin/env bash -o pipefail
.SHELLFLAGS = -ec
.DEFAULT_GOAL := help
# The phases of verify build on one another and each of them uses all cores by itself.
.NOTPARALLEL:

# Arguments for `make run`, `make demo` and `make simulator`.
ARGS ?=
# AlterShield Server, or its simulator, for `make run`; left empty, the manager runs stand-alone. TOKEN_FILE has the token shared with
# it, which `make simulator` makes if it is not there.
SERVER_URL ?=
TOKEN_FILE ?= certs/altershield-token
# Host name or address at which the API server of a development cluster reaches the process started by `make run`. Left empty, no
# webhook is registered.
WEBHOOK_HOST ?=
WEBHOOK_PORT ?= 9443
# The image to build and deploy; the one of the release that config/manager names, unless said otherwise.
IMG ?= $(RELEASED_IMG)
PLATFORMS ?= linux/amd64,linux/arm64
CONTAINER_TOOL ?= docker
# What `make deploy` and `make undeploy` render: default, certmanager or samples/server.
OVERLAY ?= default
KUBECTL ?= $(or $(shell command -v kubectl),bin/k8s/kubectl)
# A control plane that is already built is good enough as the source of kubectl.
LOCAL_KUBECTL = $(filter bin/k8s/kubectl,$(KUBECTL))
# Limit per test package. The end-to-end suite runs whole releases, deadlines included.
TEST_TIMEOUT ?= 60m
# Processes of the end-to-end suite.
E2E_PROCS ?= 2
BENCH ?= .

VERSION ?= $(or $(shell git describe --tags --always --dirty 2>/dev/null),dev)
COMMIT ?= $(or $(shell git rev-parse --verify --quiet HEAD),unknown)

CONTROLLER_GEN := bin/controller-gen
GOLANGCI_LINT := bin/golangci-lint
ADDLICENSE := bin/addlicense
CRD_REF_DOCS := bin/crd-ref-docs

RELEASED_IMG := $(shell awk '/newName:/ { name = $$2 } /newTag:/ { print name ":" $$2 }' config/manager/kustomization.yaml)

# Every Go module of the repository: the operator's own, those that pin tools, those that pin the local control plane.
MODULES := . $(patsubst %/go.mod,%,$(wildcard hack/*/go.mod hack/*/*/go.mod))
# What `make generate manifests build-installer` writes, as git pathspecs.
GENERATED := ':(glob)apis/**/zz_generated.*.go' docs/reference.md config/crd/bases config/rbac/role.yaml config/webhook/manifests.yaml \
  quick-start.yaml

# controller-gen refuses a path without Go files.
has-go = $(shell find $(1) -name '*.go' -print -quit 2>/dev/null)
RBAC_PATHS = $(if $(wildcard main.go),paths=.) $(foreach dir,controllers webhooks routers runnable internal,$(if $(call has-go,$(dir)),paths=./$(dir)/...))

##@ General

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN { FS = ":.*## "; printf "Usage: make \033[36m<target>\033[0m [VARIABLE=value]\n" } \
	  /^##@ / { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } \
	  /^[a-zA-Z0-9_-]+:.*## / { printf "  \033[36m%-16s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: clean
clean: ## Remove everything built or generated locally: bin/, local certificates, demo state.
	rm -rf bin .demo
	find certs -mindepth 1 ! -name README.md -delete

##@ Development

.PHONY: generate
generate: $(CONTROLLER_GEN) $(CRD_REF_DOCS) ## Generate the deep-copy functions of the API types, and docs/reference.md.
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./apis/...
	$(CRD_REF_DOCS) --source-path=apis --config=hack/apidocs/config.yaml --templates-dir=hack/apidocs/templates \
	  --renderer=markdown --log-level=WARN --output-path=docs/reference.md

.PHONY: manifests
manifests: $(CONTROLLER_GEN) ## Generate the CRDs, the manager's role and the webhook configurations.
	$(CONTROLLER_GEN) crd paths=./apis/... output:crd:dir=config/crd/bases
	$(if $(strip $(RBAC_PATHS)),$(CONTROLLER_GEN) rbac:roleName=manager-role $(RBAC_PATHS) output:rbac:dir=config/rbac)
	$(if $(call has-go,webhooks),$(CONTROLLER_GEN) webhook paths=./webhooks/... output:webhook:artifacts:config=config/webhook)

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the Go code and sort its imports.
	$(GOLANGCI_LINT) fmt

.PHONY: tidy
tidy: ## Run go mod tidy in every module of the repository.
	for dir in $(MODULES); do (cd "$$dir" && go mod tidy); done

##@ Checks

.PHONY: verify
verify: generate manifests build-installer fmt-check tidy-check vet lint license ## Run all static checks; fail if generated files are out of date.
	@git diff --exit-code -- $(GENERATED) \
	  || { echo "verify: generated files are out of date: run 'make generate manifests build-installer' and commit the result" >&2; exit 1; }
	@untracked=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
	  [[ -z "$$untracked" ]] || { echo "verify: generated files are not committed: $$untracked" >&2; exit 1; }

.PHONY: fmt-check
fmt-check: $(GOLANGCI_LINT) ## Fail if the Go code is not formatted.
	@$(GOLANGCI_LINT) fmt --diff || { echo "fmt-check: the code is not formatted: run 'make fmt'" >&2; exit 1; }

.PHONY: tidy-check
tidy-check: ## Fail if a go.mod or go.sum is not tidy.
	@for dir in $(MODULES); do \
	  (cd "$$dir" && go mod tidy -diff) || { echo "tidy-check: go.mod or go.sum in $$dir is not tidy: run 'make tidy'" >&2; exit 1; }; \
	done

.PHONY: vet
vet: ## Run go vet.
	go vet ./...

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run golangci-lint.
	$(GOLANGCI_LINT) run

.PHONY: license
license: $(ADDLICENSE) ## Fail if a Go or shell file has no licence header.
	@files=$$(git ls-files --cached --others --exclude-standard -- '*.go' '*.sh'); \
	  for file in $$files; do [[ ! -e "$$file" ]] || echo "$$file"; done \
	  | xargs -r $(ADDLICENSE) -check -ignore '**/zz_generated.*' \
	  || { echo "license: the files above lack the header in hack/boilerplate.go.txt" >&2; exit 1; }

##@ Tests

.PHONY: test
test: build controlplane ## Run all tests, those against a real control plane included.
	@# Packages that start control planes come last and one at a time; run from its own directory, a suite shows its progress as it goes.
	@packages=$$(go list ./... | grep -vE '/altershield-operator/(hack|test)/'); \
	  go test -timeout $(TEST_TIMEOUT) $$packages
	@dirs=$$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./hack/... ./test/... | grep -v '/test/e2e$$'); \
	  for dir in $$dirs; do go test -C "$$dir" -timeout $(TEST_TIMEOUT) -count=1; done
	@# The longest one, most of which is waiting, in several processes, each with a control plane of its own.
	go tool ginkgo --procs=$(E2E_PROCS) --timeout=$(TEST_TIMEOUT) ./test/e2e

.PHONY: test-unit
test-unit: ## Run the quick tests only (go test -short).
	@packages=$$(go list ./... | grep -vE '/altershield-operator/(hack|test)/'); \
	  go test -short $$packages

.PHONY: bench
bench: controlplane ## Run the benchmarks (BENCH selects by pattern).
	go test ./test/bench/... -run '^$$' -bench '$(BENCH)' -benchmem -timeout $(TEST_TIMEOUT)

##@ Build

.PHONY: build
build: ## Build bin/manager.
	CGO_ENABLED=0 go build -trimpath -ldflags '-X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o bin/manager .

.PHONY: docker-build
docker-build: ## Build the image IMG.
	$(CONTAINER_TOOL) build --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -t $(IMG) .

.PHONY: docker-push
docker-push: ## Push the image IMG.
	$(CONTAINER_TOOL) push $(IMG)

.PHONY: docker-buildx
docker-buildx: ## Build the image IMG for all PLATFORMS and push it.
	$(CONTAINER_TOOL) buildx build --platform=$(PLATFORMS) --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) -t $(IMG) --push .

.PHONY: build-installer
build-installer: manifests bin/k8s/kubectl ## Render config/default into quick-start.yaml.
	{ echo '# Generated by make build-installer from config/default. What it installs and how to use it: docs/operations.md'; \
	  $(call RENDER,default); } > bin/quick-start.yaml
	mv bin/quick-start.yaml quick-start.yaml

# The manifests of a directory in config/, with IMG as the manager's image.
RENDER = bin/k8s/kubectl kustomize config/$(1) | sed 's|^\( *image:\) $(RELEASED_IMG)$$|\1 $(IMG)|'

##@ Try it out

.PHONY: demo
demo: build controlplane ## Play a release on a local control plane (ARGS are passed to the demo).
	go run ./hack/demo $(ARGS)

.PHONY: controlplane
controlplane: ## Build the local control plane into bin/k8s.
	go run ./hack/controlplane/build

.PHONY: run
run: build $(if $(WEBHOOK_HOST),certs/.host,certs/tls.crt) ## Run the manager on this machine against the current kubeconfig (SERVER_URL connects it).
	bin/manager --leader-elect=false --webhook-cert-path=certs $(SERVER_FLAGS) $(ARGS)

SERVER_FLAGS = $(if $(SERVER_URL),--altershield-url='$(SERVER_URL)' $(if $(TOKEN_FILE),--altershield-token-file='$(TOKEN_FILE)'))

.PHONY: simulator
simulator: ## Run a simulator of AlterShield Server, for `make run SERVER_URL=http://127.0.0.1:9090`.
	go run ./hack/simulator --token-file='$(TOKEN_FILE)' $(ARGS)

.PHONY: install
install: $(LOCAL_KUBECTL) $(if $(WEBHOOK_HOST),certs/.host) ## Install CRDs and namespace; with WEBHOOK_HOST also the webhooks `make run` serves.
	$(KUBECTL) apply --server-side -k config/crd
	$(KUBECTL) apply -k config/dev
	$(if $(WEBHOOK_HOST),$(DEV_WEBHOOK_MANIFESTS) | $(KUBECTL) apply -f -)

.PHONY: uninstall
uninstall: $(LOCAL_KUBECTL) ## Remove from the cluster what `make install` put there.
	$(if $(wildcard certs/tls.crt),$(DEV_WEBHOOK_MANIFESTS) | $(KUBECTL) delete --ignore-not-found --timeout=3m -f -)
	$(KUBECTL) delete --ignore-not-found -k config/dev
	$(KUBECTL) delete --ignore-not-found -k config/crd

# The certificates outlive a run, because the webhook configuration in the cluster carries their CA. They are made anew only for a
# WEBHOOK_HOST other than the one they were made for, which certs/.host remembers.
CERT_HOST = $(or $(WEBHOOK_HOST),localhost)
DEV_WEBHOOK_MANIFESTS = go run ./hack/devwebhook manifests --dir certs --host '$(CERT_HOST)' --port $(WEBHOOK_PORT)
CERTS_FOR = $(if $(wildcard certs/tls.crt),$(file < certs/.host))

certs/.host: $(if $(filter-out $(CERTS_FOR),$(CERT_HOST)),FORCE)
certs/.host certs/tls.crt:
	go run ./hack/devwebhook certs --dir certs --host '$(CERT_HOST)'
	echo '$(CERT_HOST)' > certs/.host

.PHONY: FORCE
FORCE:

bin/k8s/kubectl:
	go run ./hack/controlplane/build

##@ Deployment

.PHONY: deploy
deploy: manifests bin/k8s/kubectl ## Install the operator with the image IMG into the cluster of the current kubeconfig.
	$(call RENDER,$(OVERLAY)) | $(KUBECTL) apply -f -

.PHONY: undeploy
undeploy: bin/k8s/kubectl ## Remove the operator from the cluster, its kinds and records included. See docs/operations.md first.
	@# The webhooks first: while the rest goes, nobody's release waits for them.
	$(KUBECTL) delete --ignore-not-found mutatingwebhookconfiguration/altershieldoperator-mutating-webhook-configuration \
	  validatingwebhookconfiguration/altershieldoperator-validating-webhook-configuration
	$(call RENDER,$(OVERLAY)) | $(KUBECTL) delete --ignore-not-found --timeout=3m -f -

.PHONY: deployYaml
deployYaml: $(LOCAL_KUBECTL) ## Install the operator from quick-start.yaml, as users do.
	$(KUBECTL) apply -f quick-start.yaml

# Tools, rebuilt when their module changes.

$(CONTROLLER_GEN): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $(CURDIR)/$@ sigs.k8s.io/controller-tools/cmd/controller-gen
	@touch $@

$(ADDLICENSE): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $(CURDIR)/$@ github.com/google/addlicense
	@touch $@

$(CRD_REF_DOCS): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $(CURDIR)/$@ github.com/elastic/crd-ref-docs
	@touch $@

# A module of its own: its several hundred requirements would otherwise decide the versions controller-gen is built with.
$(GOLANGCI_LINT): hack/tools/lint/go.mod hack/tools/lint/go.sum
	cd hack/tools/lint && go build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@
