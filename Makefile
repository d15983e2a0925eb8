# make demo   installs into .venv and does the main job: demonstrations, SFT, PPO, evaluation, report
# make test   the default test suite        make lint   ruff and mypy        make bench   ratios against a baseline
# make tutorial   runs the notebook in its fast mode
#
# PYTHON=python3.12 chooses the interpreter, TORCH=... another build of torch, WORKERS=4 the processes that test side by
# side (one thread and a Java each), ARGS=... goes to `grue run` or pytest, EXTRAS="textworld sb3" are installed as well.

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BENCH ?= rollout
WORKERS ?= 2
EXTRAS ?=
ARGS ?=

BIN := $(VENV)/bin
WITH := $(EXTRAS:%=$(VENV)/.with-%)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test slow tutorial lint format bench clean

demo: $(VENV)/.core $(WITH)
	$(BIN)/grue run $(ARGS)

test: $(VENV)/.with-dev $(WITH)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

slow: $(VENV)/.with-dev $(WITH)
	$(BIN)/python -m pytest -m "slow or learning" $(ARGS)

lint: $(VENV)/.with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

tutorial: $(VENV)/.with-dev $(VENV)/.with-notebooks
	$(BIN)/python -m pytest -m slow tests/tutorials/test_notebook.py $(ARGS)

format: $(VENV)/.with-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.core $(WITH)
	$(BIN)/grue bench $(BENCH) --json

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "grue needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# torch first and alone, so that TORCH can name another build of it
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) "$(TORCH)"
	$(PIP) -e .
	touch $@

$(VENV)/.with-%: $(VENV)/.core
	$(PIP) -e ".[$*]"
	touch $@
