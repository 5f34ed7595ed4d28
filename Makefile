# Each target makes .venv and installs what it needs by itself; nothing but Python 3.11 or newer is assumed.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
CHECKED := src tests benchmarks studies paper docs

.PHONY: demo test quick coverage browser lint docs fuzz soak bench clean

demo: $(VENV)/core
	$(BIN)/clustermim demo --out demo

test: lint browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

# While working: lint, and the tests of everything that trains nothing; under two minutes on two idle cores
QUICK := data docs models scores targets teachers tokenizers test_parsing.py test_patches.py test_reading.py \
	test_replacing.py test_results.py test_runs.py test_speed_documents.py test_untrusted.py test_writing.py
quick: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(addprefix tests/,$(QUICK))

# which lines the tests run, those of notebooks and of commands in other processes not counted; less than 90 % is an error
coverage: $(VENV)/all
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov=clustermim --cov-report=term:skip-covered --cov-fail-under=90

# Chromium for the tests of the report: an installed one, else Debian's package, else playwright's own
browser: $(VENV)/all
	$(BIN)/python tests/browser.py

lint: $(VENV)/all
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site, into site/; a broken link or an undocumented page fails
docs: $(VENV)/all
	$(BIN)/mkdocs build --strict

# Damaged and hostile files of every kind, for about ten minutes; COUNT=… SEED=… for others
fuzz: $(VENV)/all
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzzing.py --count $(or $(COUNT),10000) --seed $(or $(SEED),0)

# QUICK=1 for a look of under three minutes that replaces no record
bench: $(VENV)/all
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

# commands killed at every call that writes, more than 500: the old state or the new one is there, and nothing else;
# every stage on 1, 2 and 4 ranks, and 50 kills of ranks
soak: $(VENV)/all
	rm -rf $(VENV)/soak
	OMP_NUM_THREADS=1 $(BIN)/python tests/crashing.py $(VENV)/soak
	rm -rf $(VENV)/soak
	CLUSTERMIM_TEST_RANKS="1 2 4" CLUSTERMIM_TEST_RANK_KILLS=50 $(BIN)/python -m pytest tests/test_distributed.py tests/training/test_resume.py

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "clustermim needs Python 3.11 or newer; set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch first and alone: nothing else may choose its build
$(VENV)/core: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/all: $(VENV)/core
	$(PIP) -e '.[dev,docs,hf,tiff]'
	$(PIP) --no-deps --target $(VENV)/timm torchvision timm  # apart: its torchvision does not import by itself
	touch $@

clean:
	rm -rf $(VENV) demo build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
