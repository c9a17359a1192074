# Two commands do everything on a machine with Python 3.11, its venv module and a package index: `make demo`, `make test`.

PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.ready
PIP := $(RUN) -m pip install --quiet --no-input --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2
DEMO ?=

# One CPU thread a training, so that two test workers do not fight; nothing is ever fetched from a hub.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test lint bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP)  ## build .venv from constraints.txt (demo and test do it themselves)

demo: $(STAMP)  ## the whole tour on a real small training, CPU only (options: make demo DEMO="--steps 20")
	@$(RUN) -m stepprobe demo $(DEMO)

test: lint  ## lint, types, import contracts, all tests
	@echo "== pytest"
	@$(RUN) -m pytest -n $(WORKERS) --dist worksteal --durations=20

lint: $(STAMP)  ## ruff, mypy --strict, import-linter
	@echo "== ruff"
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@echo "== mypy"
	@$(RUN) -m mypy
	@echo "== import-linter"
	@$(VENV)/bin/lint-imports

bench: $(STAMP)  ## what attaching costs in time, measured in interleaved pairs
	@$(RUN) bench/overhead.py

clean:  ## remove .venv, caches and build results; runs are kept
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and alone: whatever needs it afterwards finds it there, and takes no other build of it.
$(STAMP): constraints.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: $(PYTHON) is not installed. Install Python 3.11 with its venv module (on Debian: apt-get install" \
	       "python3.11 python3.11-venv), or name one that you have: make PYTHON=/path/to/python3.11 venv" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: $(PYTHON) is older than 3.11 or lacks its venv module (on Debian: apt-get install python3.11-venv);" \
	       "name another: make PYTHON=/path/to/python3.11 venv" >&2; exit 1; }
	@echo "make venv: 1 of 3: an environment in $(VENV), for the pinned packages of constraints.txt"
	@$(RUN) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "make venv: 2 of 3: $$(grep '^torch==' constraints.txt), by far the largest download; pip is silent meanwhile"
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@echo "make venv: 3 of 3: stepprobe itself and the other packages"
	@$(PIP) hatchling
	@$(PIP) --no-build-isolation --editable '.[dev,demo]'
	@touch $@
	@echo "make venv: ready ($$(du -sh $(VENV) | cut -f 1) in $(VENV))"
