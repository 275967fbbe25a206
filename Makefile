# `make` lists the targets. Everything that needs the virtual environment makes it first.
DURATION ?= 1.0
GAME ?= coinrun
SEED ?= 1
WORKERS ?= auto
OUTPUT_DIR ?=
ENV ?= CartPole-v1
NODES ?= 2
RUN ?=

PYTHON_BIN := venv/bin/python
# of train-classic, whose settings have a budget of their own: only a DURATION that was given
GIVEN_DURATION := $(if $(filter-out file,$(origin DURATION)),--duration $(DURATION))
OUTPUT := $(if $(OUTPUT_DIR),--output-dir $(OUTPUT_DIR))

.DEFAULT_GOAL := help
.PHONY: help setup train train-parallel train-sequential train-classic train-cluster-local compare evaluate play quick tensorboard test test-fast test-full test-cluster test-extras dist release-check lint check format bench tune scaling clean

help: ## show this list
	@echo "make train-parallel DURATION=1.0 GAME=coinrun WORKERS=auto SEED=1 OUTPUT_DIR=runs/mine"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv/.ready: pyproject.toml requirements.txt requirements-dev.txt setup.sh
	@./setup.sh

setup: venv/.ready ## make venv/ with everything in it

train: train-parallel ## the same as train-parallel

train-parallel: venv/.ready ## train GAME for DURATION (hours, or 90s, 5m) on all cores
	@$(PYTHON_BIN) train_parallel_timed.py --env $(GAME) --duration $(DURATION) --num-workers $(WORKERS) --seed $(SEED) $(OUTPUT)

train-sequential: venv/.ready ## the same in one process
	@$(PYTHON_BIN) train_timed.py --env $(GAME) --duration $(DURATION) --seed $(SEED) $(OUTPUT)

train-classic: venv/.ready ## train the Gymnasium environment ENV with its tuned settings
	@$(PYTHON_BIN) train_parallel_timed.py --env $(ENV) $(GIVEN_DURATION) --num-workers $(WORKERS) --seed $(SEED) $(OUTPUT)

train-cluster-local: venv/.ready ## train GAME on NODES nodes that are all this machine
	@$(PYTHON_BIN) tools/cluster_local.py --nodes $(NODES) -- --env $(GAME) --duration $(DURATION) --seed $(SEED) $(OUTPUT)

compare: venv/.ready ## report on the newest sequential and parallel run
	@$(PYTHON_BIN) compare_results.py

evaluate: venv/.ready ## how good the policy of RUN is, on its levels and on others
	@$(PYTHON_BIN) evaluate.py $(or $(RUN),$(error name a run directory: make evaluate RUN=runs/parallel-1))

play: venv/.ready ## film the policy of RUN
	@$(PYTHON_BIN) play.py $(or $(RUN),$(error name a run directory: make play RUN=runs/parallel-1))

quick: venv/.ready ## check the installation part by part, in under a minute
	@$(PYTHON_BIN) quick_test.py

tensorboard: venv/.ready ## show all runs in a browser
	@venv/bin/tensorboard --logdir runs

test: venv/.ready ## the tests (minutes)
	@venv/bin/pytest -q -n auto --maxprocesses 4 -m "not full and not cluster"

test-fast: venv/.ready ## the tests that neither train nor start processes
	@venv/bin/pytest -q -n auto --maxprocesses 4 -m "not slow and not multiprocess and not procgen and not full"

test-full: venv/.ready ## the tests at full shapes too (long)
	@venv/bin/pytest -q -n auto --maxprocesses 4 -m "not cluster"

test-cluster: venv/.ready ## the job script under a real SLURM, where its packages are installed (long)
	@venv/bin/pytest -q -rs -m cluster

test-extras: dist ## the wheel, the notebook and each extra, in venvs of their own under build/ (long)
	@$(PYTHON_BIN) .ci/extras.py

dist: venv/.ready ## a wheel with compiled kernels and an sdist in dist/
	@rm -rf build/lib build/bdist* dist
	@PARALLEL_PPO_WHEEL=platform venv/bin/pip wheel --quiet --no-deps --wheel-dir dist .
	@venv/bin/python -m build --sdist --outdir dist . > /dev/null

release-check: ## check version, changelog, wheel and sdist on every Python of this machine (long)
	@tools/release_check.sh

lint: venv/.ready ## format and lint checks, types
	@venv/bin/ruff format --check . && venv/bin/ruff check . && venv/bin/mypy

check: lint test ## lint, types and tests

format: venv/.ready ## format the code
	@venv/bin/ruff format . && venv/bin/ruff check --fix .

bench: venv/.ready ## throughput against Stable-Baselines3, interleaved (makes it a venv of its own)
	@$(PYTHON_BIN) benchmarks/throughput.py --work W1 --against sb3,sb3_channels_last

tune: venv/.ready ## find the fastest workers and pinning for GAME on this machine
	@$(PYTHON_BIN) -m parallel_ppo tune --env $(GAME)

scaling: venv/.ready ## throughput with 1, 2, ... workers
	@$(PYTHON_BIN) benchmarks/scaling.py

clean: ## remove caches (never runs/)
	@find . -name __pycache__ -not -path './venv/*' -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
