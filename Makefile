# Everything a person or CI runs. `make help` lists it.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# How many processes run the tests, each with a Spark session of its own (about 2 GB).
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-install test-slow check format docs bench clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY) ## Create .venv and install everything into it

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headrace needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "cannot make a virtual environment; on Debian: apt install python3-venv"; exit 1; }
	@echo "installing headrace and what it needs into $(VENV) (about two minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/headrace doctor --warm
	@touch $@

demo: $(READY) ## Windowed word count of an out-of-order stream on Spark and on the box: the same
	$(BIN)/headrace run wordcount --records 100000 --format stream --on spark,box --rows 6 --top n
	$(BIN)/headrace run netmon --records 1000000 --on box --rows 4 --top rtt

test: $(READY) ## Run all tests but the slow ones
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile

test-install: ## Build the wheel, install it alone, and run jobs on both engines with it
	PYTHON=$(PYTHON) .ci/installed

test-slow: $(READY) ## Run the slow tests
	$(BIN)/python -m pytest -m slow

check: $(READY) ## Lint and check types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Write the tables of docs/engines.md from the tests
	$(BIN)/python -m tests.engines

bench: $(READY) ## Compare with hand-written PySpark, DuckDB, Polars and the limit of the machine
	$(BIN)/headrace bench wordcount --window 1s --per-second 100000 --epoch-records 100000 --against duckdb,polars,limit --at 80
	$(BIN)/headrace bench netmon --against duckdb,polars,limit
	$(BIN)/headrace bench grep --window 1s --against duckdb
	$(BIN)/headrace bench wordcount --window 1s --per-second 100000 --on spark,spark-best --against pyspark,pyspark-best
	$(BIN)/headrace bench netmon --window 1s --per-second 100000 --on spark,spark-best --against pyspark,pyspark-best
	$(BIN)/headrace bench join --per-second 100000 --on spark,spark-best --against pyspark,pyspark-best
	$(BIN)/headrace bench wc --against pyspark
	$(BIN)/headrace bench search --against pyspark
	$(BIN)/headrace bench collisions --against pyspark

clean: ## Remove what was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
