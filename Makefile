# Every target installs what it needs into the cache folder (BALLONET_CACHE, default
# ~/.cache/ballonet), keyed by content: a second run and another checkout reuse it.
.DEFAULT_GOAL := help
SHELL := /bin/sh

CACHE := $(or $(BALLONET_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ballonet)
PY = $(shell hack/bootstrap.sh path)/bin/python

# Tools keep their own caches there too, so that a clean tree stays clean.
export MYPY_CACHE_DIR := $(CACHE)/tools/mypy
export RUFF_CACHE_DIR := $(CACHE)/tools/ruff
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/tools/hypothesis
export PYTHONPATH := operator:probe:.

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make the virtual environment
	@hack/bootstrap.sh >/dev/null

.PHONY: prepare
prepare: setup ## Install and build all that the end-to-end scenarios need
	@$(PY) -m e2e.prepare

.PHONY: check
check: setup ## Lint, types, import rules, generated files
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(dir $(PY))lint-imports --no-cache
	$(PY) hack/generate.py --check

.PHONY: generate
generate: setup ## Write crds/ and the generated pages and tables of docs/
	$(PY) hack/generate.py

.PHONY: test
test: test-unit test-e2e ## All tests: test-unit, then test-e2e

.PHONY: test-unit
test-unit: setup ## Unit, golden, property and controller tests (no cluster)
	$(PY) -m pytest tests probe/tests/unit -q --durations=5

.PHONY: test-e2e
test-e2e: setup ## Scenarios on a real cluster with the real vLLM
	$(PY) -m e2e.session -- $(PY) -m pytest e2e probe/tests/engine -v -rs --durations=0 --durations-min=0.5

.PHONY: demo
demo: setup ## A refused topology, its remedy and what both do to a real engine (KEEP=1: stay up)
	$(PY) -m e2e.session $(if $(KEEP),--keep) -- $(PY) -m e2e.demo $(if $(KEEP),--keep)

.PHONY: down
down: setup ## Stop the embedded cluster, unless a session uses it (FORCE=1: even then)
	$(PY) -m e2e.cluster stop $(if $(FORCE),--force)

.PHONY: shell
shell: setup ## A shell with kubectl on the cluster that runs (after make demo KEEP=1)
	@$(PY) -m e2e.cluster exec -- $${SHELL:-sh}

.PHONY: plan
plan: setup ## Plan the pools of F without a cluster, for example F=examples (make turns its exit code into 2)
	@$(PY) -m ballonet plan -f $(or $(F),$(error say which file or folder: make plan F=examples))

.PHONY: bench
bench: setup ## Benchmarks
	$(PY) -m e2e.session -- $(PY) -m benchmarks

# The data and the scorer are no part of this tree: DATA is a folder of them, SCORER the program.
SIZING = $(CACHE)/sizing
.PHONY: bench-sizing
bench-sizing: setup ## Grade sizes against a data set: DATA=folder SCORER=score.py (WRITE=1: into docs/accuracy.md)
	@mkdir -p $(SIZING)
	$(PY) $(or $(SCORER),$(error say where the scorer is: SCORER=score.py)) questions \
		--data $(or $(DATA),$(error say where the data is: DATA=folder)) --out $(SIZING)/questions.jsonl
	$(PY) -m benchmarks.sizing $(SIZING)/questions.jsonl $(SIZING)/answers.jsonl
	$(PY) $(SCORER) grade --data $(DATA) --answers $(SIZING)/answers.jsonl --json $(SIZING)/graded.json >/dev/null
	$(PY) -m benchmarks.sizing_table $(SIZING)/graded.json
	$(if $(WRITE),$(PY) -m benchmarks.sizing_accuracy $(SCORER) $(DATA) $(SIZING)/graded.json)

.PHONY: images
images: setup ## Build the container images and print their archives
	$(PY) -m e2e.images build all

.PHONY: lock
lock: ## Resolve the dependencies anew and write the lock files
	hack/lock.sh

# By name, never the folder itself: BALLONET_CACHE may be a folder with other things in it.
BUILT = venv-* vllm-* kubernetes-* pause-* prometheus-* images buildah model model-sliding sizing tools *.lock
.PHONY: clean
clean: down ## Stop the cluster and remove what was built into the cache folder
	rm -rf $(foreach name,$(BUILT),"$(CACHE)"/$(name))
