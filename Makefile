# The verbs of the repository. Each sets up what it needs, and may be run again at any time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.kvferry-installed
# What tests, checks and plots need besides: a newcomer's demo does without.
DEV_INSTALLED := $(VENV)/.kvferry-dev-installed
MODEL ?= smollm2-135m
ARGS ?=
# ARGS may choose tests of one half only; without them, that pytest finds none is a failure.
NONE_CHOSEN := test $$? -eq 5 -a -n "$(ARGS)"
# One compute thread a process, unless the caller says otherwise: oversubscribed OpenMP threads spin.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup serve demo test test-unit test-system test-gpu chaos check fmt proto bench clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1|/' | column -t -s '|'

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing kvferry and what it needs into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -U 'pip>=25'
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(DEV_INSTALLED): $(INSTALLED)
	@echo "installing what tests and checks need into $(VENV)"
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(DEV_INSTALLED)  ## make a virtual environment and install everything, pinned
	@echo "ready: $(BIN)/kvferry --help"

demo: $(INSTALLED)  ## fetch the demo model, start one prefill and one decode worker, stream an answer
	@$(BIN)/kvferry demo --model $(MODEL) $(ARGS)

serve: $(INSTALLED)  ## serve the demo model on port 8000 (MODEL=..., ARGS='--prefill 2 --decode 1')
	@$(BIN)/kvferry serve $(MODEL) $(ARGS)

test: $(DEV_INSTALLED)  ## all tests: unit, then system
	@$(BIN)/python -m pytest tests -n 2 -m 'not system and not gpu' $(ARGS) || $(NONE_CHOSEN)
	@$(BIN)/python -m pytest tests -m 'system or gpu' $(ARGS) || $(NONE_CHOSEN)

test-unit: $(DEV_INSTALLED)  ## the tests that need no other process, on two cores
	@$(BIN)/python -m pytest tests -n 2 -m 'not system and not gpu' $(ARGS)

test-system: $(DEV_INSTALLED)  ## the tests with real processes, Ray, NIXL and sockets
	@$(BIN)/python -m pytest tests/system tests/chaos -m system $(ARGS)

test-gpu: $(DEV_INSTALLED)  ## the tests that need a CUDA device
	@$(BIN)/python -m pytest tests/gpu -m gpu $(ARGS)

chaos: $(DEV_INSTALLED)  ## the long fault bench: 5,000 requests while processes are killed (ARGS='--seed 2')
	@$(BIN)/python -m tests.chaos $(ARGS)

check: $(DEV_INSTALLED)  ## format, lint, types, import arrows, generated code
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python protocol/generate.py --check

fmt: $(DEV_INSTALLED)  ## format and fix what can be fixed
	@$(BIN)/ruff check --fix -q . || true
	@$(BIN)/ruff format -q .

proto: $(DEV_INSTALLED)  ## generate the protobuf code again
	@$(BIN)/python protocol/generate.py

bench: $(DEV_INSTALLED)  ## the benchmarks that need no running server; JSON on the last line of each
	@$(BIN)/python -m benchmarks.engine_step --model $(MODEL) --threads 1
	@$(BIN)/python -m benchmarks.transfer_bandwidth
	@$(BIN)/python -m benchmarks.codec_speed
	@$(BIN)/python -m benchmarks.scheduler_cost
	@$(BIN)/python -m benchmarks.router_load --model $(MODEL)
	@$(BIN)/python -m benchmarks.footprint $(MODEL)

clean:  ## remove the virtual environment and caches (not the downloaded models)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
