# Two commands: `make run` and `make test`. Each does all of its own set-up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: run test check unit clean help

help: ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' Makefile

run: $(VENV)/.run-ready ## Install what serving needs, fetch the models, serve on loopback
	$(BIN)/floe up

test: check unit ## Everything CI runs

check: $(VENV)/.test-ready ## Lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.test-ready ## The test suite
	$(BIN)/python -m pytest $(ARGS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Floe needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=24'

$(VENV)/.run-ready: pyproject.toml | $(BIN)/python
	$(PIP) install --progress-bar on --editable '.[serve,ner,hub]'
	@touch $@

$(VENV)/.test-ready: pyproject.toml requirements/test.txt | $(BIN)/python
	$(PIP) install --progress-bar on --editable '.[serve,ner,hub,convert,train,fed,dp,tailor]' -r requirements/test.txt
	@touch $@ $(VENV)/.run-ready

clean: ## Remove the virtual environment
	rm -rf $(VENV)
