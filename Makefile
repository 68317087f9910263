# Every target makes what it needs: `make test` works on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-slow lint bench coverage clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/captune demo --out captune-demo

test: $(READY)
	$(BIN)/pytest -m "not slow" -n 2

test-slow: $(READY)
	$(BIN)/pytest -m slow

coverage: $(READY)
	$(BIN)/pytest -m "not slow" -n 2 --cov --cov-report=term-missing:skip-covered

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/embed.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage*
