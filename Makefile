# Needs git, make and Python 3.11 or later: all packages have wheels. Every target sets up .venv first.
#   make help                       what there is
#   make serve PORT=8000 ARGS=...   flags after ARGS go to the command unchanged
#   make env TORCH_INDEX=URL        take torch from another index, such as PyTorch's CPU wheel index

.DEFAULT_GOAL := help
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.fencepost-env
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP := $(BIN)/python -m pip install --no-input --disable-pip-version-check
TORCH_INDEX ?=
PORT ?= 8000
SCRIPT ?= smoke
ARGS ?=
WORKERS ?= 2

.PHONY: help env serve test check prove bench bench-k pair load load-ramp dashboards

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

env: $(STAMP) ## Make .venv and install everything pinned (TORCH_INDEX= for another torch index)

# torch goes first and alone: which build it is depends on its index, and the rest, which comes from
# the usual one, must take it as it stands.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no python3 found; install Python 3.11 or later" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than 3.11; name another one with PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: $(PYTHON) cannot make virtual environments (no ensurepip);" \
	         "on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(PIP) --no-deps $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

serve: $(STAMP) ## Serve the embedded pair (PORT=8000, ARGS='--model DIR ...')
	$(BIN)/fencepost serve --port $(PORT) $(ARGS)

test: $(STAMP) ## Run the tests (ARGS='-k name -x', WORKERS=0 in one process)
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive \
	  $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(STAMP) ## Check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@if test -x $(BIN)/hadolint; then $(BIN)/hadolint Dockerfile; fi

prove: $(STAMP) ## Prove law, state and randomness, print one table (ARGS='--full --json FILE')
	$(BIN)/python -m tests.prove --workers $(if $(filter 0,$(WORKERS)),1,$(WORKERS)) $(ARGS)

bench: $(STAMP) ## Measure and print the figures (ARGS='--json FILE')
	$(BIN)/python -m tests.bench $(ARGS)

bench-k: $(STAMP) ## Measure K = auto beside fixed ones (ARGS='--pair embedded --plot FILE.png')
	$(BIN)/python -m tests.bench.k $(ARGS)

load: $(STAMP) ## Load a local server with k6 (SCRIPT=smoke|rate|ramp|soak|cancel, ARGS='-e RATE=4')
	$(BIN)/python -m deploy.k6 $(SCRIPT) $(ARGS)

dashboards: $(STAMP) ## Write the JSON of Grafana's dashboards again
	$(BIN)/python -m deploy.dashboards $(ARGS)

load-ramp: SCRIPT := ramp
load-ramp: load ## Find the rate up to which a local server keeps the SLO

# The corpus is the documentation that Debian ships for Python.
pair: $(STAMP) ## Train the embedded pair again from its seed (long)
	@if command -v apt-get >/dev/null && ! dpkg -s python3.11-doc >/dev/null 2>&1; then \
	  apt-get update && apt-get install --yes --no-install-recommends python3.11-doc; fi
	$(BIN)/python -m deploy.pair $(ARGS)
