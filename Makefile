# Every target does its own set-up: the first run makes .venv, later ones use it until
# pyproject.toml or constraints.txt change.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
BENCH_STAMP := $(VENV)/installed-bench

.PHONY: install demo test test-search test-ray test-comm check bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,bench]"
	touch $@

demo: $(STAMP)
	$(BIN)/hpsearch run configs/digits.yaml

# Side by side: much of their time tests wait for other processes.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs=3 test-search test-ray test-comm

ON_RAY := tests/hpsearch/backends tests/hpsearch/cli

test-search: $(STAMP)
	$(BIN)/python -m pytest tests --ignore=tests/comm $(ON_RAY:%=--ignore=%) | sed --unbuffered 's/^/search: /'

test-ray: $(STAMP)
	$(BIN)/python -m pytest $(ON_RAY) | sed --unbuffered 's/^/ray: /'

test-comm: $(STAMP)
	$(BIN)/python -m pytest tests/comm | sed --unbuffered 's/^/comm: /'

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(BENCH_STAMP)
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
