# Everything a newcomer needs. Each target makes its own set-up in .venv and reuses it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCE := pyproject.toml src/attnlab/__init__.py

.PHONY: demo test test-all fuzz lint bench clean help
.DEFAULT_GOAL := help

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.core  ## train on two data sets, print a table, draw a figure (under a minute after set-up)
	$(BIN)/attnlab demo

# Whole files go to one process, so that tests of a file share what they compute.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile

test: $(VENV)/.test  ## the tests, with a sample of the slow ones
	@command -v chromium >/dev/null || echo "no Chromium: tests of the explorer in a browser will be skipped"
	$(BIN)/python -m pytest $(PARALLEL)

test-all: $(VENV)/.test  ## every test
	$(BIN)/python -m pytest $(PARALLEL) --slow all

# Exit code 1 if anything but a right answer or a typed error came of a call; least failing calls go to a file.
SECONDS := 60
fuzz: $(VENV)/.test  ## hostile calls over the whole API on all cores: make fuzz SECONDS=600
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --seconds $(SECONDS)

lint: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.bench  ## side-by-side timings against peers
	$(BIN)/attnlab bench

clean:           ## remove the virtual environment
	rm -rf $(VENV)

$(VENV)/.core: $(SOURCE)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) --editable '.[test]'
	touch $@

# The types of the tests are checked too, so lint needs what they import.
$(VENV)/.dev: $(VENV)/.test
	$(PIP) --editable '.[dev]'
	touch $@

# torch comes first and alone: its pinned build must be there before anything asks for "some" torch.
$(VENV)/.bench: $(VENV)/.core
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[bench]'
	touch $@
