# Every target makes what it needs: `make test` works on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
READY := $(VENV)/.ready
export HF_HUB_OFFLINE ?= 1

.PHONY: demo demo-lowest demo-newest docs wheel test test-slow test-faults smoke lint bench coverage results clean

# A torchvision whose compiled operators do not match torch breaks whatever imports it, so it is put where only tests of
# open_clip and timm look for it.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps --target $(VENV)/vision torchvision open_clip_torch timm
	touch $(READY)

demo: $(READY)
	$(BIN)/captune demo --out captune-demo

test: $(READY)
	$(BIN)/pytest -m "not slow" -n 2 --dist worksteal

test-slow: $(READY)
	$(BIN)/pytest -m slow --ignore=tests/faults

test-faults: $(READY)
	CAPTUNE_EXAMPLES=2000 $(BIN)/pytest tests/faults

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
	$(BIN)/captune benchmark suites/beds.yaml $(TESTBED_FOLDERS) $(TO_RESULTS)
	$(BIN)/captune benchmark suites/ucmerced.yaml $(TESTBED_FOLDERS) $(TO_RESULTS)
	$(BIN)/captune benchmark suites/ucmerced-ablations.yaml $(TESTBED_FOLDERS) $(TO_RESULTS)
else
	@echo "Skipping the suites of beds and UC Merced: set CAPTUNE_TESTBED to the folder with data/ and models/."
endif

docs: $(READY)
	$(PIP) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir build/site
	@echo "Documentation: build/site/index.html"

wheel: $(READY)
	$(PIP) -e ".[release]"
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# The wheel in an empty environment, with the lowest or the newest versions that pyproject.toml allows. LOWEST replaces
# versions, such as "torch=2.13.0", that your package index does not have; TORCH chooses the newest torch.
LOWEST ?=
TORCH ?= torch
EMPTY = .venv-$*/$(notdir $(BIN))/python
demo-lowest demo-newest: demo-%: wheel
	rm -rf .venv-$*
	$(PYTHON) -m venv .venv-$*
	$(BIN)/python scripts/lowest_versions.py $(LOWEST) > .venv-$*/lowest.txt
	$(EMPTY) -m pip install --quiet $(if $(filter lowest,$*),-c .venv-$*/lowest.txt torch,$(TORCH))
	$(EMPTY) -m pip install --quiet $(if $(filter lowest,$*),-c .venv-$*/lowest.txt) dist/*.whl
	cd .venv-$* && ../$(EMPTY) -m captune demo --out captune-demo

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest dist .pytest_cache .mypy_cache .ruff_cache .coverage*
