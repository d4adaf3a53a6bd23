# From a fresh clone: `make run` trains a 1-bit network, `make test` tests everything.
# Every target sets up .venv by itself; nothing is redone when nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(wildcard fedbnn_core/packed/csrc/*.[ch])
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup run test check bench clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## Create .venv and install FedBNN into it

$(STAMP): pyproject.toml $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "FedBNN needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing FedBNN into $(VENV) (a minute or two the first time) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[simulation,dev]'
	@touch $@

run: $(STAMP) ## Train a 1-bit network in a simulated federation on the embedded data
	@$(BIN)/fedbnn run $(ARGS)

test: $(STAMP) ## Run all tests
	@$(BIN)/python -m pytest $(ARGS)

check: $(STAMP) ## Lint, check the formatting and the types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(STAMP) ## Run the benchmarks (minutes; use an idle machine)
	@$(BIN)/python -m benchmarks $(ARGS)

clean: ## Remove .venv, caches and build products (runs/ is kept)
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .flwr
	@find . -name __pycache__ -prune -exec rm -rf {} +
	@find fedbnn_core -name '*.so' -delete
