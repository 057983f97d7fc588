# Every target does its own set-up: the first run makes .venv, later ones use it until
# pyproject.toml or constraints.txt change.

SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
DEV_STAMP := $(VENV)/installed-dev
BENCH_STAMP := $(VENV)/installed-bench
DOCS_STAMP := $(VENV)/installed-docs

# What needs neither torch nor Ray, and the packages that it imports.
PURE_ROOMS := objective schedulers space searchers study sweep journal config widths simulation
PURE_PACKAGES := cmaes greenlet hypothesis jsonschema numpy optuna pandas psutil pyarrow pytest pytest-timeout pyyaml rich \
	scikit-learn scipy shtab tensorboard

.PHONY: install demo test test-all test-pure fuzz check bench docs gpu clean

# What running a sweep needs; the tests need more.
install: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP) $@

$(BENCH_STAMP): $(DEV_STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,bench]"
	touch $@

$(DOCS_STAMP): $(DEV_STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	touch $@

demo: $(STAMP)
	$(BIN)/hpsearch demo

# The parts of tests/run_parts.py side by side, but for what is exhaustive, and with few draws of the property tests.
test: $(DEV_STAMP)
	$(BIN)/python -m tests.run_parts -m "not exhaustive" --hypothesis-profile=few

# The rest, and the property tests with all their draws.
test-all: $(DEV_STAMP)
	$(BIN)/python -m tests.run_parts -m "exhaustive or hypothesis"

# In another Python, where torch may not be at hand: make test-pure PYTHON=python3.13
test-pure:
	$(PYTHON) -m venv build/pure-$(notdir $(PYTHON))
	build/pure-$(notdir $(PYTHON))/bin/pip install --quiet --constraint constraints.txt $(PURE_PACKAGES)
	build/pure-$(notdir $(PYTHON))/bin/pip install --quiet --no-deps --editable .
	build/pure-$(notdir $(PYTHON))/bin/python -m pytest -q -p no:cacheprovider \
		-p tests.without_torch -m "not exhaustive" --hypothesis-profile=few $(PURE_ROOMS:%=tests/hpsearch/%)

# The property tests alone, with examples that no run before has drawn, and more of them.
fuzz: $(DEV_STAMP)
	$(BIN)/python -m tests.run_parts -m hypothesis --hypothesis-profile=fresh

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(BENCH_STAMP)
	$(BIN)/python -m tests.benchmarks

# The documentation as a site in build/site, with the docstrings of what is public.
docs: $(DOCS_STAMP)
	$(BIN)/python docs/build_site.py

# All that needs a GPU, in a Python whose torch is built for CUDA: make gpu PYTHON=... . It installs nothing.
gpu:
	$(PYTHON) -m tests.gpu

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
