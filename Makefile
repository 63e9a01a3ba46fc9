# Build, check and try out the operator. `make help` lists the targets.
#
# Tools that the targets need beyond Go, make and git are built from pinned sources into bin/ on first use. Where a kubectl or
# KUBEBUILDER_ASSETS of the pinned minor version are there, those programs are taken instead.

SHELL = /usr/bin/env bash -o pipefail
.SHELLFLAGS = -ec
.DEFAULT_GOAL := help
# The phases of verify build on one another and each of them uses all cores by itself.
.NOTPARALLEL:
# Compiled packages name no directory, so that clones share the cache of Go.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

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
# The directory of config/ that `make deploy` and `make undeploy` render: default, certmanager or samples/server.
OVERLAY ?= default
# The kubectl of the local control plane where that was built; otherwise kubectl alone is built, which takes a minute.
KUBECTL ?= $(or $(shell command -v kubectl),$(wildcard bin/k8s/kubectl),bin/kubectl)
LOCAL_KUBECTL = $(filter bin/kubectl,$(KUBECTL))
# Limit per test package. The end-to-end suite runs whole releases, deadlines included.
TEST_TIMEOUT ?= 60m
# Which specs `make test-node` runs, by their labels.
NODE_LABELS ?= !soak
# The reports of tests.
REPORTS = bin/reports
# Processes of the end-to-end suite: more than cores, for most of it is waiting.
E2E_PROCS ?= 6
# Other packages that are tested at a time. Those that start control planes wait most of the time, too.
TEST_PROCS ?= 3
# How long each fuzz target runs in `make fuzz` and `make test-soak`.
FUZZ_TIME ?= 60s
# How long random stories are played in `make test-soak`, side by side with what else runs there.
STORIES_TIME ?= 20m
# The seeds of random stories that `make test-soak` plays instead, as 141-180; left empty, it plays new seeds for STORIES_TIME.
STORIES_SEEDS ?=
# Busy processes beside which `make test-busy` tests.
BUSY ?= 4
# How many times `make mutants` runs each test.
REPEAT ?= 1
BENCH ?= .
# The benchmarks of `make figures`, and how often each runs.
FIGURES ?= Release|Held|Submitted|Verdict|Failover|Fleet|Memory|Compare
FIGURES_COUNT ?= 3
# How many releases of each kind `make judge` simulates.
JUDGE_RELEASES ?= 10000
# The release of Kubernetes that the tests run: 1.33, 1.35, or the newest if it is empty.
K8S_VERSION ?=
export K8S_VERSION

VERSION ?= $(or $(shell git describe --tags --always --dirty 2>/dev/null),dev)
COMMIT ?= $(or $(shell git rev-parse --verify --quiet HEAD),unknown)

CONTROLLER_GEN := bin/controller-gen
GOLANGCI_LINT := bin/golangci-lint
ADDLICENSE := bin/addlicense
CRD_REF_DOCS := bin/crd-ref-docs
GOTESTSUM := bin/gotestsum
KUSTOMIZE := bin/kustomize
HELM := bin/helm
HELM_DOCS := bin/helm-docs
CYCLONEDX_GOMOD := bin/cyclonedx-gomod

# How programs of this repository are run: compiled as `make build` compiles, so that what both need is compiled once.
GO_RUN := CGO_ENABLED=0 go run

# Programs of releases are compiled and run with the Go that hack/release/go.mod pins, which the go command fetches if it is not there.
RELEASE_GO := $(shell awk '$$1 == "toolchain" { print $$2 }' hack/release/go.mod)
# The files of a release are written here, and the programs in them to BINARIES.
DIST := dist
BINARIES := bin/released
# The repository of the images, and where charts are pushed to.
IMAGE_REPOSITORY = $(firstword $(subst :, ,$(RELEASED_IMG)))
CHART_REPOSITORY ?= oci://$(patsubst %/,%,$(dir $(IMAGE_REPOSITORY)))/charts
# The name of the image of `make image`: IMG where that is given, else the version of the tree.
IMAGE = $(if $(filter file,$(origin IMG)),$(IMAGE_REPOSITORY):$(VERSION),$(IMG))
IMAGE_FILES = $(DIST)/altershield-operator-image-$(VERSION)
# The digest of the image that was built.
IMAGE_DIGEST = $(firstword $(file < $(IMAGE_FILES).digests.txt))
CHART_DIGEST = bin/chart.digest.txt
# Left empty, `make release` refuses a tree that is not ready for it.
TRIAL ?=

RELEASED_TAG = $(lastword $(subst :, ,$(RELEASED_IMG)))
RELEASED_IMG := $(shell awk '/newName:/ { name = $$2 } /newTag:/ { print name ":" $$2 }' config/manager/kustomization.yaml)

# Every Go module of the repository: the operator's own, those that pin tools, those that pin the local control plane.
MODULES := . $(patsubst %/go.mod,%,$(wildcard hack/*/go.mod hack/*/*/go.mod hack/*/*/*/go.mod))
# Those beside the operator's own that have code of ours, not only pins.
CODE_MODULES := $(foreach dir,$(filter-out .,$(MODULES)),$(if $(filter-out %/tools.go,$(wildcard $(dir)/*.go)),$(dir)))
# The files that `make generate manifests build-installer chart` writes, as git pathspecs.
GENERATED := ':(glob)apis/**/zz_generated.*.go' docs/reference/api.md docs/reference/states.md config/crd/bases config/rbac/role.yaml \
  config/webhook/manifests.yaml quick-start.yaml charts

# controller-gen refuses a path without Go files.
has-go = $(shell find $(1) -name '*.go' -print -quit 2>/dev/null)
RBAC_PATHS = $(if $(wildcard main.go),paths=.) $(foreach dir,controllers webhooks routers runnable internal,$(if $(call has-go,$(dir)),paths=./$(dir)/...))

##@ General

.PHONY: help
help: ## Show this help.
	@awk 'BEGIN { FS = ":.*## "; printf "Usage: make \033[36m<target>\033[0m [VARIABLE=value]\n" } \
	  /^##@ / { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } \
	  /^[a-zA-Z0-9_-]+:.*## / { printf "  \033[36m%-17s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: clean
clean: ## Remove everything built or generated locally: bin/, dist/, local certificates, demo state.
	rm -rf bin $(DIST) .demo
	find certs -mindepth 1 ! -name README.md -delete

##@ Development

.PHONY: generate
generate: $(CONTROLLER_GEN) $(CRD_REF_DOCS) ## Generate the deep-copy functions of the API types, docs/reference/api.md, and the tables of the catalog.
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./apis/...
	$(CRD_REF_DOCS) --source-path=apis --config=hack/apidocs/config.yaml --templates-dir=hack/apidocs/templates \
	  --renderer=markdown --log-level=WARN --output-path=docs/reference/api.md
	$(GO_RUN) ./hack/catalog docs/reference/states.md

.PHONY: manifests
manifests: $(CONTROLLER_GEN) ## Generate the CRDs, the manager's role and the webhook configurations.
	$(CONTROLLER_GEN) crd paths=./apis/... output:crd:dir=config/crd/bases
	$(if $(strip $(RBAC_PATHS)),$(CONTROLLER_GEN) rbac:roleName=manager-role $(RBAC_PATHS) output:rbac:dir=config/rbac)
	$(GO_RUN) ./hack/webhookmanifests > bin/webhook-manifests.yaml
	mv bin/webhook-manifests.yaml config/webhook/manifests.yaml

PYTHON ?= python3
# The programs that make the site, in the versions and with the hashes that are pinned.
DOCS_VENV := bin/docs

$(DOCS_VENV)/bin/mkdocs: hack/docs/requirements.txt
	$(PYTHON) -m venv --clear $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement hack/docs/requirements.txt
	touch $@

.PHONY: docs
docs: $(DOCS_VENV)/bin/mkdocs ## Make the site of the documentation in bin/site, and its screens in docs/images. Needs Python 3.10 or later.
	$(DOCS_VENV)/bin/python hack/docs/screens.py docs/reference/plugin.md docs/images
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --clean --site-dir $(CURDIR)/bin/site
	git diff --exit-code -- docs/images

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the Go code and sort its imports.
	$(GOLANGCI_LINT) fmt

.PHONY: tidy
tidy: ## Run go mod tidy in every module of the repository.
	for dir in $(MODULES); do (cd "$$dir" && go mod tidy); done

##@ Checks

.PHONY: verify
verify: generate manifests build-installer chart fmt-check tidy-check vet lint license words ## Run all static checks; fail if generated files are out of date.
	@git diff --exit-code -- $(GENERATED) \
	  || { echo "verify: generated files are out of date: run 'make generate manifests build-installer chart' and commit the result" >&2; exit 1; }
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
	for dir in $(CODE_MODULES); do go vet -C "$$dir" ./...; done

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run golangci-lint.
	$(GOLANGCI_LINT) run
	for dir in $(CODE_MODULES); do (cd "$$dir" && $(CURDIR)/$(GOLANGCI_LINT) run); done

# Files of others, generated files, history, the list of words itself, and the user database of the image.
WORDS_OTHERS := ^(CHANGELOG|README\.zh-CN)\.md$$|zz_generated|^config/crd/bases/|^hack/(words/|release/files\.go$$)|^test/node/(testdata|outcomes)
.PHONY: words
words: ## Find words and phrases that have to be read twice.
	@git ls-files '*.go' '*.md' 'config/*.yaml' 'config/**/*.yaml' charts/altershield-operator/values.yaml '.github/**/*.yaml' '*.sh' .ci/run Makefile \
	  | grep -vE '$(WORDS_OTHERS)' | CGO_ENABLED=0 xargs go run ./hack/words

.PHONY: license
license: $(ADDLICENSE) ## Fail if a Go or shell file has no licence header.
	@files=$$(git ls-files --cached --others --exclude-standard -- '*.go' '*.sh'); \
	  for file in $$files; do [[ ! -e "$$file" ]] || echo "$$file"; done \
	  | xargs -r $(ADDLICENSE) -check -ignore '**/zz_generated.*' \
	  || { echo "license: the files above lack the header in hack/boilerplate.go.txt" >&2; exit 1; }

##@ Tests

# Most processes of the tests are short-lived, and what is compiled for them is, too: their garbage is collected less often.
test: export GOGC := 400
# API servers of envtest start while everything else compiles.
export KUBEBUILDER_CONTROLPLANE_START_TIMEOUT ?= 3m
export KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT ?= 1m

.PHONY: test
test: build controlplane $(GOTESTSUM) ## Run all tests but the long ones, those against a real control plane included.
	@rm -rf $(REPORTS) && mkdir -p $(REPORTS)
	@# Side by side with the end-to-end suite, which shows its progress. The output of the others is shown when it is over. Tests that need
	@# the monitoring or the controllers of other kinds wait for their build.
	@( $(MONITORING) && $(KINDS) ) > $(REPORTS)/monitoring.log 2>&1 & monitoring=$$!; \
	  ( $(TEST_PACKAGES) ) > $(REPORTS)/packages.log 2>&1 & packages=$$!; \
	  ( $(TEST_TOOLS) ) > $(REPORTS)/tools.log 2>&1 & tools=$$!; \
	  ( $(TEST_MODULES) ) > $(REPORTS)/modules.log 2>&1 & modules=$$!; \
	  failed=; \
	  $(call E2E,!soak,e2e) || failed+=" end-to-end"; \
	  wait "$$monitoring" || failed+=" monitoring or kinds"; \
	  wait "$$packages" || failed+=" packages"; \
	  wait "$$tools" || failed+=" tools"; \
	  wait "$$modules" || failed+=" modules"; \
	  cat $(REPORTS)/monitoring.log $(REPORTS)/packages.log $(REPORTS)/tools.log $(REPORTS)/modules.log; \
	  echo 'The slowest tests:'; cat $(REPORTS)/*.json | $(GOTESTSUM) tool slowest --num 10 || true; \
	  [[ -z "$$failed" ]] || { echo "test: failed:$$failed (see above)" >&2; exit 1; }

# The packages of the operator.
TEST_PACKAGES = $(call GO_TEST,packages) $$($(TESTED) | grep -vE '/altershield-operator/(hack|test)/')
# The tools and the other suites. They have control planes or run commands, so they are tested even if nothing has changed. First comes
# the one that takes longest.
TEST_TOOLS = $(call GO_TEST,tools) -p $(TEST_PROCS) -count=1 ./test/docs $$($(TESTED) | grep -E '/altershield-operator/(hack|test)/' | grep -v '/test/e2e$$')
# The modules beside the operator's.
TEST_MODULES = result=0; \
  for dir in $(CODE_MODULES); do (cd "$$dir" && GOTOOLCHAIN=$(RELEASE_GO) $(call GO_TEST,$${dir//\//-}) -count=1 ./...) || result=1; done; \
  exit $$result
# go test with the name of the report. make verify vets, and what is linked for one run needs no debugger.
GO_TEST = $(CURDIR)/$(GOTESTSUM) --format=pkgname --hide-summary=skipped --jsonfile=$(abspath $(REPORTS))/$(1).json -- -vet=off -ldflags=-w -timeout $(TEST_TIMEOUT)
TESTED = go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...
# The specs of the end-to-end suite that a filter of labels selects, and the name of the report.
E2E = go tool ginkgo --vet=off --ldflags=-w --procs=$(E2E_PROCS) --timeout=$(TEST_TIMEOUT) --label-filter='$(1)' --output-dir=$(REPORTS) --gojson-report=$(2).json ./test/e2e

.PHONY: test-soak
test-soak: build controlplane $(GOTESTSUM) ## Run the tests that take long: kills of the manager all along, an upgrade, the demo, fuzzing, more faults and orders, random stories.
	@mkdir -p $(REPORTS)
	@{ $(SOAK_WORLD); } > $(REPORTS)/world.log 2>&1 & world=$$!; \
	  failed=; \
	  hack/fuzz/run.sh $(FUZZ_TIME) || failed+=" fuzzing"; \
	  $(call E2E,soak,soak) || failed+=" end-to-end"; \
	  wait "$$world" || failed+=" world"; \
	  cat $(REPORTS)/world.log; \
	  [[ -z "$$failed" ]] || { echo "test-soak: failed:$$failed (see above)" >&2; exit 1; }

# The other two thirds of the faults, twelve orders of each story, and random stories.
SOAK_WORLD = result=0; \
  for part in 1 2; do $(call SOAK_STORIES,faults-$$part) 'Sweep$$' -world.part=$$part || result=1; done; \
  $(call SOAK_STORIES,orders) 'TestTwoAtOnce$$|TestAnyOrder$$|TestBehind$$' -world.all || result=1; \
  $(SOAK_RANDOM) || result=1; \
  exit $$result
SOAK_RANDOM = $(if $(STORIES_SEEDS),,RANDOM_STORIES_TIME=$(STORIES_TIME)) $(call SOAK_STORIES,random) 'TestRandomStories$$' -world.seeds='$(STORIES_SEEDS)'
SOAK_STORIES = $(call GO_TEST,$(1)) ./controllers -count=1 -run

.PHONY: test-faults
test-faults: ## Try each kind of fault at each write and call of each story, and report it in bin/reports/faults.md.
	@mkdir -p $(REPORTS)
	@rm -f $(REPORTS)/faults.md
	result=0; go test ./controllers -count=1 -timeout 3h -run 'Sweep$$|TestAnyInput$$' -world.all -world.report=$(abspath $(REPORTS))/faults.md || result=$$?; \
	  cat $(REPORTS)/faults.md; exit $$result

.PHONY: test-reproducible
test-reproducible: ## Build the image twice, the second time without anything that was compiled before, and compare the bytes.
	RELEASE_COLD=1 GOTOOLCHAIN=$(RELEASE_GO) go test -C hack/release -timeout $(TEST_TIMEOUT) -count=1 -run TestSameBytes .

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZ_TIME, two at a time.
	hack/fuzz/run.sh $(FUZZ_TIME)

.PHONY: mutants
mutants: ## Change the program in one place at a time, as hack/mutants/mutants.yaml says, and run the test that has to notice (MUTANTS=regexp for some).
	@$(GO_RUN) ./hack/mutants -run '$(MUTANTS)' -repeat '$(REPEAT)'

.PHONY: test-busy
test-busy: ## Run `make test` beside BUSY busy processes: no test needs a quiet machine.
	@pids=; trap 'kill $$pids' EXIT; \
	  for ((i = 0; i < $(BUSY); i++)); do (while kill -0 $$$$; do :; done) 2> /dev/null & pids+=" $$!"; done; \
	  $(MAKE) --no-print-directory test

.PHONY: test-unit
test-unit: ## Run the quick tests only (go test -short).
	@packages=$$(go list ./... | grep -vE '/altershield-operator/(hack|test)/'); \
	  go test -short $$packages

# Kubelets have the newest release, so the control plane of the nodes has it, too.
test-node: override K8S_VERSION :=

.PHONY: test-node
test-node: build controlplane $(HELM) $(GOTESTSUM) ## Run the operator on real nodes (Linux, root; installs the packages it needs).
	hack/nodes/requirements.sh
	hack/nodes/build.sh
	@rm -rf bin/nodes/image && mkdir -p $(REPORTS)
	@$(MAKE) --no-print-directory image DIST=bin/nodes/image PLATFORMS=linux/$$(go env GOARCH)
	ALTERSHIELD_NODES=1 go tool ginkgo --label-filter='$(NODE_LABELS)' --timeout=$(TEST_TIMEOUT) \
	  --output-dir=$(REPORTS) --gojson-report=nodes.json ./test/node

.PHONY: bench
bench: controlplane ## Run the benchmarks (BENCH selects by pattern).
	go test ./test/bench/... -run '^$$' -bench '$(BENCH)' -benchmem -timeout 6h

.PHONY: figures
figures: controlplane ## Measure the figures that have goals, FIGURES_COUNT times each, and write bin/reports/figures.md and .json.
	@mkdir -p $(REPORTS)
	@rm -f $(REPORTS)/figures.txt
	go test ./test/bench -run '^$$' -bench '$(FIGURES)' -benchtime 1x -count $(FIGURES_COUNT) -timeout 6h | tee $(REPORTS)/figures.txt
	go test ./webhooks -run '^$$' -bench 'Mutating' -count $(FIGURES_COUNT) | tee -a $(REPORTS)/figures.txt
	@$(GO_RUN) ./hack/figures -json $(REPORTS)/figures.json < $(REPORTS)/figures.txt > $(REPORTS)/figures.md
	@cat $(REPORTS)/figures.md

.PHONY: judge
judge: ## Measure internal/judge on JUDGE_RELEASES simulated releases of each kind, and write bin/reports/judge.md and drawings.
	@mkdir -p $(REPORTS)
	result=0; $(GO_RUN) ./hack/judge -n $(JUDGE_RELEASES) -plots $(REPORTS) > $(REPORTS)/judge.md || result=$$?; cat $(REPORTS)/judge.md; exit $$result

##@ Build

.PHONY: build
build: ## Build bin/manager.
	@# Suites build it, too, while others run it: each builds a copy, which needs no linking when up to date, and moves that into place.
	@mkdir -p bin; echo 'building bin/manager'
	@temp=bin/.manager.$$$$; trap 'rm -f "$$temp"' EXIT; [[ ! -e bin/manager ]] || cp -p bin/manager "$$temp"; \
	  CGO_ENABLED=0 go build -ldflags '-X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o "$$temp" .; \
	  mv -f "$$temp" bin/manager

.PHONY: plugin
plugin: ## Build bin/kubectl-altershield, the kubectl plugin.
	CGO_ENABLED=0 go build -ldflags '-X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o bin/kubectl-altershield ./cmd/kubectl-altershield

.PHONY: plugin-archives
plugin-archives: bin/release ## Build the archives of the plugin of VERSION for all platforms, and the manifest for krew, into dist/.
	@echo 'building the archives of kubectl-altershield $(VERSION)'
	@bin/release plugin -version '$(VERSION)' -commit '$(COMMIT)' -out $(DIST) -binaries $(BINARIES)

.PHONY: docker-build
docker-build: ## Build the image IMG.
	$(CONTAINER_TOOL) build $(BUILD_ARGS) -t $(IMG) .

.PHONY: docker-push
docker-push: ## Push the image IMG.
	$(CONTAINER_TOOL) push $(IMG)

.PHONY: docker-buildx
docker-buildx: ## Build the image IMG for all PLATFORMS and push it.
	$(CONTAINER_TOOL) buildx build --platform=$(PLATFORMS) $(BUILD_ARGS) -t $(IMG) --push .

BUILD_ARGS = --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) \
  --build-arg CREATED=$(shell TZ=UTC git log -1 --date=format-local:%FT%TZ --format=%cd 2>/dev/null)

.PHONY: build-installer
build-installer: manifests $(KUSTOMIZE) ## Render config/default into quick-start.yaml.
	{ echo '# Generated by make build-installer from config/default. What it installs and how to use it: docs/getting-started/install.md'; \
	  $(call RENDER,default); } > bin/quick-start.yaml
	mv bin/quick-start.yaml quick-start.yaml

.PHONY: chart
chart: manifests $(KUSTOMIZE) $(HELM_DOCS) ## Write the generated templates of the Helm chart, its version, and its README.
	$(GO_RUN) ./hack/chart -kustomize $(KUSTOMIZE)
	sed -E 's/^version: .*/version: $(RELEASED_TAG:v%=%)/; s/^appVersion: .*/appVersion: $(RELEASED_TAG)/' charts/altershield-operator/Chart.yaml > bin/Chart.yaml
	mv bin/Chart.yaml charts/altershield-operator/Chart.yaml
	$(HELM_DOCS) --chart-search-root=charts --log-level=warning

.PHONY: chart-package
chart-package: $(HELM) ## Package the Helm chart of VERSION (vX.Y.Z) into dist/, with the same bytes each time.
	HELM=$(HELM) hack/chart/package.sh $(VERSION) $(DIST)

# The manifests of a directory in config/, with IMG as the manager's image.
RENDER = $(KUSTOMIZE) build config/$(1) | sed 's|^\( *image:\) $(RELEASED_IMG)$$|\1 $(RENDERED_IMG)|'
RENDERED_IMG = $(IMG)

##@ Images and releases

.PHONY: image
image: bin/release ## Build the image IMG for all PLATFORMS into dist/, without a container engine.
	@echo 'building the image $(IMAGE)'
	@bin/release image -version '$(VERSION)' -commit '$(COMMIT)' -image '$(IMAGE)' -platforms '$(PLATFORMS)' -out $(DIST) -binaries $(BINARIES)

.PHONY: image-push
image-push: bin/release ## Push the image that make image built, as IMG.
	@[[ -e $(IMAGE_FILES).tar ]] || { echo "image-push: $(IMAGE_FILES).tar is not there: run 'make image' first" >&2; exit 1; }
	@bin/release push $(IMAGE_FILES).tar '$(IMAGE)'

.PHONY: chart-push
chart-push: $(HELM) ## Push the chart in dist/ to CHART_REPOSITORY.
	@mkdir -p bin; HELM=$(HELM) hack/chart/push.sh $(DIST)/altershield-operator-$(VERSION:v%=%).tgz '$(CHART_REPOSITORY)' $(CHART_FLAGS) > $(CHART_DIGEST)
	@cat $(CHART_DIGEST)

# Each of them writes to dist/, where nothing is left of another release.
.PHONY: release
release: release-check image release-manifests chart-package plugin-archives release-sboms checksums ## Leave all that is released as VERSION in dist/.
	@echo 'made release $(VERSION):'; ls -l $(DIST)

.PHONY: release-check
release-check: ## Fail if VERSION may not be released from this tree; TRIAL=1 releases any. Empties dist/.
	@TRIAL=$(TRIAL) hack/release/check.sh '$(VERSION)' '$(RELEASED_TAG)'
	@rm -rf $(DIST) $(BINARIES); mkdir -p $(DIST)

.PHONY: release-manifests
release-manifests: RENDERED_IMG = $(IMAGE)@$(IMAGE_DIGEST)
release-manifests: $(KUSTOMIZE) ## Render dist/quick-start.yaml, with the image that make image built, by its digest.
	@[[ -n '$(IMAGE_DIGEST)' ]] || { echo "release-manifests: there is no image of $(VERSION) in $(DIST): run 'make image' first" >&2; exit 1; }
	@{ echo '# AlterShield Operator $(VERSION). What this installs and how to use it: docs/getting-started/install.md'; $(call RENDER,default); } > $(DIST)/quick-start.yaml
	@grep -qF 'image: $(RENDERED_IMG)' $(DIST)/quick-start.yaml

.PHONY: release-sboms
release-sboms: $(CYCLONEDX_GOMOD) ## Write the bills of materials of the programs that were built into dist/.
	@for binary in $(BINARIES)/*; do TOOL=$(CYCLONEDX_GOMOD) hack/release/sbom.sh "$$binary" '$(VERSION)' "$(DIST)/$${binary##*/}.cdx.json"; done

.PHONY: checksums
checksums: ## Write dist/checksums.txt.
	@rm -f $(DIST)/checksums.txt; cd $(DIST); export LC_ALL=C; sums=$$(sha256sum -- *); echo "$$sums" > checksums.txt

.PHONY: release-digests
release-digests: ## Print the digests of image and chart that were pushed, as outputs of a step of a workflow.
	@awk 'NR == 1 { $$2 = "image" } { sub("/", "-", $$2); print $$2 "=" $$1 }' $(IMAGE_FILES).digests.txt
	@echo "chart=$$(cat $(CHART_DIGEST))"

.PHONY: publish
publish: ## Make the release of VERSION on GitHub, with all that is in dist/.
	@mkdir -p bin
	hack/release/notes.sh '$(VERSION)' > bin/notes.md
	gh release create '$(VERSION)' $(DIST)/* --verify-tag --title '$(VERSION)' --notes-file bin/notes.md $(if $(findstring -,$(VERSION)),--prerelease)

.PHONY: bin/release
bin/release:
	@mkdir -p bin
	@cd hack/release && CGO_ENABLED=0 GOTOOLCHAIN=$(RELEASE_GO) GOWORK=off GOFLAGS= go build -buildvcs=false -trimpath -o $(CURDIR)/$@ .

##@ Try it out

.PHONY: demo
demo: begin build plugin controlplane ## Play a release on a local control plane (ARGS are passed to the demo).
	$(GO_RUN) ./hack/demo $(ARGS)

.PHONY: controlplane
controlplane: ## Build the local control plane into bin/k8s.
	@$(GO_RUN) ./hack/binaries/build

.PHONY: monitoring
monitoring: ## Build Prometheus, Alertmanager and kube-state-metrics into bin/monitoring.
	@$(MONITORING)

MONITORING = $(GO_RUN) ./hack/binaries/build -monitoring

.PHONY: kinds
kinds: ## Build the controllers of OpenKruise and LeaderWorkerSet into bin/kinds.
	@$(KINDS)

KINDS = $(GO_RUN) ./hack/binaries/build -kinds

# Says how long the first time takes, and downloads the control plane's sources while the manager is built.
.PHONY: begin
begin:
	@$(GO_RUN) ./hack/binaries/build -begin

.PHONY: run
run: build $(if $(WEBHOOK_HOST),certs/.host,certs/tls.crt) ## Run the manager on this machine against the current kubeconfig (SERVER_URL connects it).
	bin/manager --leader-elect=false --webhook-cert-path=certs $(SERVER_FLAGS) $(ARGS)

SERVER_FLAGS = $(if $(SERVER_URL),--altershield-url='$(SERVER_URL)' $(if $(TOKEN_FILE),--altershield-token-file='$(TOKEN_FILE)'))

.PHONY: simulator
simulator: ## Run a simulator of AlterShield Server, for `make run SERVER_URL=http://127.0.0.1:9090`.
	$(GO_RUN) ./hack/simulator --token-file='$(TOKEN_FILE)' $(ARGS)

.PHONY: install
install: $(LOCAL_KUBECTL) $(if $(WEBHOOK_HOST),certs/.host) ## Install CRDs and namespace; with WEBHOOK_HOST also the webhooks `make run` serves.
	@# Server-side: the kinds stay as they are where somebody else installed them without the annotation of kubectl apply.
	$(KUBECTL) apply --server-side --force-conflicts -k config/dev
	$(if $(WEBHOOK_HOST),$(DEV_WEBHOOK_MANIFESTS) | $(KUBECTL) apply -f -)

.PHONY: uninstall
uninstall: $(LOCAL_KUBECTL) ## Remove from the cluster what `make install` put there. See docs/tasks/uninstall.md first.
	$(if $(wildcard certs/tls.crt),$(DEV_WEBHOOK_MANIFESTS) | $(KUBECTL) delete --ignore-not-found --timeout=3m -f -)
	$(KUBECTL) delete --ignore-not-found -k config/dev
	$(KUBECTL) delete --ignore-not-found -k config/crd

# The certificates outlive a run, because the webhook configuration in the cluster carries their CA. They are replaced only for a
# WEBHOOK_HOST other than the one they were made for, which certs/.host remembers.
CERT_HOST = $(or $(WEBHOOK_HOST),localhost)
DEV_WEBHOOK_MANIFESTS = $(GO_RUN) ./hack/devwebhook manifests --dir certs --host '$(CERT_HOST)' --port $(WEBHOOK_PORT)
CERTS_FOR = $(if $(wildcard certs/tls.crt),$(file < certs/.host))

certs/.host: $(if $(filter-out $(CERTS_FOR),$(CERT_HOST)),FORCE)
certs/.host certs/tls.crt:
	$(GO_RUN) ./hack/devwebhook certs --dir certs --host '$(CERT_HOST)'
	echo '$(CERT_HOST)' > certs/.host

.PHONY: FORCE
FORCE:

bin/kubectl: hack/controlplane/pins/go.mod hack/controlplane/pins/go.sum
	cd hack/controlplane/pins && CGO_ENABLED=0 go build -o $(CURDIR)/$@ k8s.io/kubernetes/cmd/kubectl
	@touch $@

##@ Deployment

.PHONY: deploy
deploy: $(KUSTOMIZE) $(LOCAL_KUBECTL) ## Install the operator with the image IMG into the cluster of the current kubeconfig.
	$(call RENDER,$(OVERLAY)) | $(KUBECTL) apply -f -

.PHONY: undeploy
undeploy: $(KUSTOMIZE) $(LOCAL_KUBECTL) ## Remove the operator from the cluster, its kinds and records included. See docs/tasks/uninstall.md first.
	@# The webhooks first: while the rest goes, nobody's release waits for them.
	$(KUBECTL) delete --ignore-not-found mutatingwebhookconfiguration/altershieldoperator-mutating-webhook-configuration \
	  validatingwebhookconfiguration/altershieldoperator-validating-webhook-configuration \
	  mutatingwebhookconfiguration/altershieldoperator-declared-mutating \
	  validatingwebhookconfiguration/altershieldoperator-declared-validating
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

$(GOTESTSUM): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $(CURDIR)/$@ gotest.tools/gotestsum
	@touch $@

$(KUSTOMIZE): hack/tools/go.mod hack/tools/go.sum
	cd hack/tools && go build -o $(CURDIR)/$@ sigs.k8s.io/kustomize/kustomize/v5
	@touch $@

# A module of its own: its several hundred requirements would otherwise decide the versions controller-gen is built with.
$(GOLANGCI_LINT): hack/tools/lint/go.mod hack/tools/lint/go.sum
	cd hack/tools/lint && go build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

$(HELM): hack/tools/helm/go.mod hack/tools/helm/go.sum
	cd hack/tools/helm && CGO_ENABLED=0 go build -o $(CURDIR)/$@ helm.sh/helm/v4/cmd/helm
	@touch $@

$(CYCLONEDX_GOMOD): hack/tools/sbom/go.mod hack/tools/sbom/go.sum
	cd hack/tools/sbom && CGO_ENABLED=0 go build -o $(CURDIR)/$@ github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
	@touch $@

# Of an older Helm, whose requirements do not go with those of the one above.
$(HELM_DOCS): hack/tools/helmdocs/go.mod hack/tools/helmdocs/go.sum
	cd hack/tools/helmdocs && CGO_ENABLED=0 go build -o $(CURDIR)/$@ github.com/norwoodj/helm-docs/cmd/helm-docs
	@touch $@
