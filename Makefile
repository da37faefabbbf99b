# `make run` runs the embedded demo, `make test` the tests. Each creates the environment first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CONFIG ?= config/config.yaml
PROFILE ?= profiles/local
PYTHON ?= python3
UV := $(or $(shell command -v uv),.tools/uv/bin/uv)
BIN := .venv/bin
OFFLINE := $(and $(wildcard wheels),--no-index --find-links wheels)
OLDEST_TORCH = $(shell sed -n 's/.*"torch>=\([0-9.]*\),.*/\1/p' pyproject.toml)
PINNED := envs/requirements$(if $(OFFLINE),,-dev).txt
# Bold on a terminal, unless NO_COLOR is set (https://no-color.org); Snakemake has an option instead.
say = @on= off=; if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then on='\033[1m' off='\033[0m'; fi; printf "$$on== %s$$off\n"
NOCOLOR := $(if $(NO_COLOR),--nocolor)
# Where it is set, each start of a program would compile the library's modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run report check test test-unit test-all test-oldest-torch lint lint-style lint-types lint-layers lint-workflow audit format docs lock env wheel wheels site doctor bench bench-peers gpu-check cluster-up cluster-down cluster-shell clean

help: ## List the commands
	@grep -E '^[a-z -]+:.*## ' Makefile | sed -E 's/^([a-z -]+):.*## (.*)/  make \1\t\2/; s/(cluster-up) (.*)-(.*) (.*)-(.*)\t/\1, -\3, -\5\t/' | expand -t 38

run: env ## Run the embedded demo, or CONFIG=..., and write report.html
	$(say) 'running $(CONFIG) with $(PROFILE)'
	@printf 'To watch it in another terminal: $(BIN)/trainyard status --config %q --watch\n' '$(CONFIG)'
	@$(BIN)/python scripts/check.py --quiet --config '$(CONFIG)'
	@TRAINYARD_WRITES_REPORT=1 $(BIN)/trainyard run --profile '$(PROFILE)' --config '$(CONFIG)' $(NOCOLOR)
	@$(MAKE) --no-print-directory report
	@printf '\nDone.\n'; for each in report.html results/tables results/plots; do \
	  if [ -e "$$each" ]; then printf '  %-8s %s\n' "$$(basename "$$each" .html)" "$$PWD/$$each"; fi; done

report: env
	$(say) 'writing report.html'
	@$(BIN)/python scripts/report.py --config '$(CONFIG)'

check: env ## Check CONFIG=my.yaml, its data and your code, before a job is queued
	@$(BIN)/python scripts/check.py --config '$(CONFIG)'

test: env ## Run what every change must pass: 20 CPU minutes
	$(say) 'running the tests that every change must pass'
	$(BIN)/python -m pytest -n 4 # more than the cores: many tests wait

test-unit: env ## Run the unit tests (2 CPU minutes)
	$(BIN)/python -m pytest -n 2 tests/unit

test-all: env ## Run all tests, with the table of faults, and write docs/faults.md (40 minutes on two cores)
	$(say) 'running all tests'
	rm -rf results/faults
	TRAINYARD_FAULTS=$(CURDIR)/results/faults $(BIN)/python -m pytest -m '' -n 6 || status=$$?; \
	  PYTHONPATH=tools:tests:scripts $(BIN)/python tests/cluster/fault_page.py results/faults docs/faults.md; exit $${status:-0}

test-oldest-torch: env ## Test the training loop, and the GPU check at toy size, with the oldest torch that is supported
	$(say) 'installing torch $(OLDEST_TORCH) in .tools/oldest-torch'
	@$(UV) venv --quiet --allow-existing --python '>=3.11,<3.14' .tools/oldest-torch
	@$(UV) pip install --quiet --python .tools/oldest-torch/bin/python -r pyproject.toml --extra train --extra torchmetrics \
	  'torch==$(OLDEST_TORCH).*' timm pytest pytest-timeout pytest-xdist hypothesis
	.tools/oldest-torch/bin/python -m pytest -n auto tests/unit/training tests/integration/training
	PY=.tools/oldest-torch/bin/python TOY=1 LIMIT=1500 CORRECT_S=600 SPEED_S=300 OUT=results/oldest-torch bash tools/gpu_check/run.sh

lint: lint-style lint-types lint-layers lint-workflow ## Check style, types and layers: ruff, mypy, import-linter, snakefmt, snakemake --lint

lint-style: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: env
	$(BIN)/mypy

lint-layers: env
	PYTHONPATH=scripts $(BIN)/lint-imports --no-cache

lint-workflow: env
	$(BIN)/snakefmt --check --compact-diff Snakefile workflow
	$(BIN)/snakemake --lint
	$(BIN)/python tools/options.py --check

audit: | $(UV) ## Check the pinned dependencies for known vulnerabilities (needs a connection to PyPI's database)
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	if found=$$($(UV) tool run --quiet pip-audit==2.10.1 --strict --disable-pip --require-hashes --progress-spinner off \
	  -r envs/requirements.txt 2> "$$log"); then echo 'no known vulnerabilities in envs/requirements.txt'; \
	elif [ -n "$$found" ]; then printf '%s\n' "$$found"; exit 1; \
	else echo "not audited: pip-audit reaches no complete database of vulnerabilities here ($$(tail -n 1 "$$log"))"; exit 1; fi

format: env ## Format the code: ruff, snakefmt
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

docs: env ## Generate the config's schema and option tables, and the drawings in docs/
	$(BIN)/python tools/options.py
	$(BIN)/python docs/drawings.py

site: env ## Write the documents as a site to site/: open site/index.html
	@PYTHONPATH=tools:scripts NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@printf '%s\n' "$$PWD/site/index.html"

doctor: env ## Check a Slurm site before the first job (CONFIG=..., PROFILE=...; with JOB=1 also a node)
	@$(BIN)/python scripts/doctor.py --config '$(CONFIG)' $(if $(filter file,$(origin PROFILE)),,--profile '$(PROFILE)') $(if $(JOB),--job)

bench: env ## Run the benchmarks; benchmarks/README.md lists the single commands
	$(BIN)/python benchmarks/slot_pause.py
	$(BIN)/python benchmarks/slot_pause.py --short
	$(BIN)/python benchmarks/dry_run.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/simulate_failures.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/order.py
	$(BIN)/python benchmarks/winner.py
	$(BIN)/python benchmarks/early_stopping.py
	$(BIN)/python benchmarks/claims.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/data_path.py
	$(BIN)/python benchmarks/staging.py
	$(BIN)/python benchmarks/staging.py --images 10000 --side 224
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/demo.py

bench-peers: env .tools/peers/ready ## Compare with sbatch, job arrays, Ray Tune and others on the test cluster (3 to 4 hours; ARGS=--quick: 20 minutes)
	$(say) 'comparing with peers; results/bench-peers/runs.jsonl keeps what is done'
	@PYTHONPATH=tools:scripts:benchmarks $(BIN)/python -m peers $(ARGS)

gpu-check: env ## Check the training loop on a GPU, then measure its speed (9 minutes at most); TOY=1 without a GPU
	PYTHONPATH=tools:scripts $(BIN)/python -m gpu_check --out results $(if $(TOY),--toy)

env: .venv/ready .venv/bin/trainyard ## Create the environment in .venv from the pinned and hashed files in envs/, or from wheels/

.venv/ready: $(PINNED) | $(UV)
	$(say) 'creating the environment in .venv from $(or $(and $(OFFLINE),wheels/),the package index (40 s with a good connection))'
	@$(UV) venv --quiet --allow-existing $(if $(OFFLINE),--offline) --python '>=3.11,<3.14' .venv
	@$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes $(OFFLINE) $(PINNED)
	@touch $@

.venv/bin/trainyard: .venv/ready
	@printf '%s\n' '#!/bin/sh' 'exec "$${0%/*}/python" "$${0%/*}/../../scripts/trainyard" cli.commands "$$@"' > $@
	@chmod +x $@

.tools/peers/ready: envs/requirements-peers.txt | $(UV)
	$(say) 'creating the environment of the peers in .tools/peers'
	@$(UV) venv --quiet --allow-existing --python '>=3.11,<3.14' .tools/peers
	@$(UV) pip sync --quiet --compile-bytecode --python .tools/peers/bin/python --require-hashes envs/requirements-peers.txt
	@touch $@

.tools/uv/bin/uv:
	$(say) 'fetching uv into .tools'
	@$(PYTHON) -m pip install --quiet --root-user-action=ignore --target .tools/uv $(OFFLINE) uv==0.13.8

wheel: | $(UV) ## Build the wheel of Trainyard, with the command `trainyard`, in dist/
	$(say) 'building the wheel in dist/'
	@$(UV) build --quiet --wheel --build-constraints envs/requirements-dev.txt --require-hashes

wheels: ## Download the packages that a run needs into wheels/, for `make env` on a machine without internet
	$(PYTHON) -m pip download --quiet --require-hashes --no-deps --dest wheels -r envs/requirements.txt
	$(PYTHON) -m pip download --quiet --no-deps --dest wheels uv==0.13.8

lock: | $(UV) ## Pin and hash the dependencies of pyproject.toml in envs/
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command 'make lock' --extra all pyproject.toml -o envs/requirements.txt
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command 'make lock' -c envs/requirements.txt --extra all --group dev pyproject.toml -o envs/requirements-dev.txt
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command 'make lock' --group trackers -o envs/requirements-trackers.txt
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command 'make lock' --group peers -o envs/requirements-peers.txt
	{ printf '%s\n' '# The same environment for conda (`--sdm conda`), written by `make lock`.' 'channels: [conda-forge]' \
	  'dependencies:' '  - python=3.11' '  - pip' '  - pip:'; \
	  sed -nE 's/^([a-zA-Z0-9_.-]+==[^\]*[^\ ]) *\\?$$/      - "\1"/p' envs/requirements.txt; } > envs/trainyard.yaml

cluster-up cluster-down cluster-shell: cluster-%: env ## Start, stop or enter a real Slurm of four hosts on this machine (SITE=second: of three)
	@PYTHONPATH=tools $(BIN)/python -m slurm_cluster $(if $(SITE),--site $(SITE)) $*

clean: ## Remove the environment and all results
	rm -rf .venv .tools .snakemake results report.html site
