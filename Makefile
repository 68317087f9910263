# Every target makes what it needs: `make test` works on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-slow test-faults smoke lint bench coverage results clean

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
	$(BIN)/pytest -m slow --ignore=tests/faults

test-faults: $(READY)
	$(BIN)/pytest -m slow tests/faults

# Every method in every learning setting on the embedded world, shortened; two shards in parallel.
SMOKE := OMP_NUM_THREADS=1 $(BIN)/captune benchmark smoke --out captune-smoke --workers 0
smoke: $(READY)
	$(SMOKE) --shard 1/2 & first=$$!; $(SMOKE) --shard 2/2 && wait $$first
	$(SMOKE) --table

coverage: $(READY)
	$(BIN)/pytest -m "not slow" -n 2 --cov --cov-report=term-missing:skip-covered

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/embed.py
	$(BIN)/python benchmarks/second_look.py

# Write the tables of docs/results; finished cells in captune-benchmark are reused.
TO_RESULTS := --out captune-benchmark --tables docs/results
TESTBED_FOLDERS := --data $(CAPTUNE_TESTBED)/data --models $(CAPTUNE_TESTBED)/models
results: $(READY)
	$(BIN)/captune benchmark suites/patterns.yaml $(TO_RESULTS)
ifdef CAPTUNE_TESTBED
	$(BIN)/captune benchmark suites/ucmerced.yaml $(TESTBED_FOLDERS) $(TO_RESULTS)
	$(BIN)/captune benchmark suites/ucmerced-ablations.yaml $(TESTBED_FOLDERS) $(TO_RESULTS)
else
	@echo "Skipping the UC Merced suites: set CAPTUNE_TESTBED to the folder with data/ and models/."
endif

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage*
