# Everything a newcomer or a CI needs, from Python and make alone: `make` lists it.
#
#   PYTHON=python3.13   another interpreter
#   SB3=yes             PyTorch and Stable-Baselines3 on any Python, however large
#   ARGS=...            more arguments for the program that a target runs

PYTHON ?= python3
# Emptied when the interpreter changes.
VENV ?= .venv
ARGS ?=
# "dev" has the tools of `make check` too.
GROUP ?= dev
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# PyTorch is by far the largest thing to install; one Python with it is enough, and elsewhere the tests that need it skip.
SB3 ?= $(if $(filter 3.11,$(VERSION)),yes,no)

TEST_ALL := 3.10 3.11 3.13
BIN := $(VENV)/bin
# What is installed, said by the names of empty files, so that a second call installs nothing.
MADE := $(VENV)/.made-$(VERSION)
INSTALLED := $(VENV)/.installed-$(VERSION)-$(GROUP)-sb3-$(SB3)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test faults check test-all bench bench-check clean needs-sb3

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

demo: needs-sb3 $(INSTALLED) ## train PPO on DummyVecEnv, SubprocVecEnv and SharedMemVecEnv; table and chart
	$(BIN)/python examples/demo.py $(ARGS)

test: $(INSTALLED) ## run the tests
	$(BIN)/python -m pytest $(ARGS)

faults: $(INSTALLED) ## run the whole fault matrix, of which `make test` runs a sample; takes half an hour or more
	$(BIN)/python -m pytest tests/test_fault_matrix.py --all-faults $(ARGS)

check: needs-sb3 $(INSTALLED) ## lint, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test-all: ## run the tests on each of Python 3.10, 3.11 and 3.13 that this machine has
	@failed=; \
	for version in $(TEST_ALL); do \
		for python in python$$version "$$(pyenv root 2>/dev/null)"/versions/$$version.*/bin/python; do \
			if "$$python" -c pass 2>/dev/null; then break; else python=; fi; \
		done; \
		if [ -z "$$python" ]; then echo "== Python $$version: not found, skipped"; continue; fi; \
		echo "== Python $$version"; \
		$(MAKE) --no-print-directory test PYTHON="$$python" VENV=.venv-$$version GROUP=test || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed on Python$$failed"; exit 1; fi

bench: needs-sb3 $(INSTALLED) ## measure against the limits and what is replaced; half an hour; writes docs/benchmarks
	$(BIN)/python benchmarks/suite.py $(ARGS)

OLD ?= docs/benchmarks/results.json
NEW ?=

bench-check: needs-sb3 $(INSTALLED) ## compare two results, OLD=... NEW=..., by ratio to the limits; a quick run without NEW
	$(BIN)/python benchmarks/check_speed.py $(OLD) $(NEW)

clean: ## remove the virtual environments and everything generated
	rm -rf .venv .venv-3.* demo-results bench-results dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks MUJOCO_LOG.TXT
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

needs-sb3:
	@if [ -z "$(VERSION)" ]; then echo "$(PYTHON) does not run: name a Python with PYTHON=..."; exit 1; fi
	@if [ $(SB3) != yes ]; then \
		echo "This needs Stable-Baselines3 and PyTorch, which are installed on Python 3.11 only, and $(PYTHON) is $(VERSION):"; \
		echo "use PYTHON=python3.11, or SB3=yes to install them on this one (without a CPU build, several GB)."; exit 1; fi

$(MADE):
	@echo "Installing into $(VENV), once; this can take some minutes."
	$(PYTHON) -m venv --clear $(VENV)
	@# The pip that comes with older Pythons knows no dependency groups.
	$(INSTALL) --upgrade pip
	@touch $@

$(INSTALLED): $(MADE) pyproject.toml constraints.txt
	$(INSTALL) --build-constraint constraints.txt --group $(GROUP) --editable '.$(if $(filter yes,$(SB3)),[demo])'
	@touch $@
