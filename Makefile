# make demo   see it work        make test   every test but the slow ones
# make bench  measure it here    make lint   what CI's reviewers would say
# make train-tiny  train the embedded models anew, in some hours
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools

# A worker of one thread for every core.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo test test-slow lint bench figures train-tiny clean
.DEFAULT_GOAL := demo

demo: $(READY)
	@echo "==> a problem, then four rules under three caches, on the embedded model"
	@$(BIN)/fastdllm demo

test: $(TOOLS)
	@echo "==> the tests"
	@$(PYTEST)

test-slow: $(TOOLS)
	@echo "==> every test, the slow ones too"
	@$(PYTEST) -m ''

lint: $(TOOLS)
	@echo "==> ruff, then mypy"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(TOOLS)
	@$(BIN)/python benchmarks/all.py

figures: $(TOOLS)
	@echo "==> docs/figures"
	@$(BIN)/fastdllm figure profile --output docs/figures

# Two processes of one thread each: on two cores faster than one of two. Kill it, and it resumes.
# The first is trained from nothing, the next three each go on from the one before; tiny-dream and tiny-llada-v begin
# with tiny-llada's weights.
TINY ?= tiny-llada-base tiny-llada-more tiny-llada-sums tiny-llada tiny-dream tiny-llada-v
train-tiny: $(TOOLS)
	@for model in $(TINY); do \
	  OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 -m fastdllm train --threads 1 --device cpu \
	    --recipe $$model --output runs/$$model --eval-every 2000 --eval-count 48 --allow-code-execution || exit 1; \
	done

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made anew when it is missing and brought up to date when these files change:
# READY has what a user needs, TOOLS what the tests and the measurements need besides.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	@echo "==> setting up $(VENV): torch and the package, a minute the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e .
	@touch $@

$(TOOLS): $(READY)
	@echo "==> adding the tools: pytest, the evaluation harness, drawing"
	@$(INSTALL) -e '.[dev]'
	@touch $@
