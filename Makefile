# tierlog: one door for everything. Needs git, make and Python 3.11 or newer; the rest comes from requirements.lock.
#
#   make demo              the whole of tierlog on real data, in two minutes
#   make test              every test
#
# To work on it:
#   make check             lint, types, layers, fast tests; part: PACKAGE=tiering
#   make fmt docs lock     format code; renew reference pages; renew lock files
#   make test-spark-oldest    the Spark source on PySpark 4.0
#   make test-clients      kcat, Java; answers compared with Apache Kafka's
#   make compiled          hot modules with mypyc; their tests: test-compiled
#   make simulate          a cluster on virtual time, under faults: SEEDS=100
#   make simulate-mutants  the same, without one safeguard: MUTANT_SEEDS=500
#   make chaos             real nodes, faults, clients: ROUNDS=3 FAULTS=… APART=1
#   make history           the same; all copies of all logs compared: MINUTES=5
#   make fuzz              mutated traffic of clients: FUZZ_CASES=… FUZZ_SEED=…
#   make soak              memory and descriptors under load: SOAK_MINUTES=10
#
# Benchmarks (beside Kafka they need Java 17, Maven and a C compiler):
#   make bench             one node beside Kafka: ROUNDS=3 SECONDS=3
#   make bench-cluster     three nodes beside three of Kafka, load and kills
#   make bench-alone bench-cluster-alone    the same without Kafka
#   make bench-tiered      a tiered topic and an S3 server, with goals
#   make bench-spark       Spark's scans beside its Kafka source and Parquet
#   make bench-trees       this tree beside another revision of it: BEFORE=REVISION
#   make bench-calm        CPU at 90 %: no election may happen: CALM_MINUTES=10

PYTHON ?= python3
VENV ?= .venv
DEMO_OPTIONS ?= --picture build/demo.png
SOAK_MINUTES ?= 10
SEEDS ?= 100
FIRST_SEED ?= 0
MUTANT_SEEDS ?= 500
FAULTS ?=
JOBS ?= 2
ROUNDS ?= 3
SECONDS ?= 3
TESTS ?=
KILLS ?= 1
CALM_MINUTES ?= 10
MINUTES ?= 5
UV_VERSION := 0.13.9
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Compiling tierlog takes half of a broker's start, and the tests start a thousand. Some images forbid to keep the bytecode.
export PYTHONDONTWRITEBYTECODE :=
# Files of tests side by side; those that measure each other's load are in one file. A run in which a test crashes its
# worker ends: with a new worker, pytest-xdist (3.8) would wait forever if files are dealt out.
# `exec`: a shell between make and the tests would not pass a signal on.
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadfile --max-worker-restart 0
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# INSTALLER=uv is five times as fast, and does not read pip's configuration (docs/adr/0003).
INSTALLER ?= pip
INSTALL = $(if $(filter uv,$(INSTALLER)),$(BIN)/uv pip install --quiet --python $(BIN)/python,$(PIP) install)

.PHONY: help venv demo check fast slow test fuzz soak simulate simulate-mutants chaos history test-clients test-nightly test-spark-oldest compiled test-compiled bench \
  bench-alone bench-cluster bench-cluster-alone bench-trees bench-tiered bench-spark bench-calm fmt lint types layers lock docs supply-chain s3-server clean

help:
	@sed -n '3,/^$$/s/^# \{0,3\}//p' Makefile

venv: $(READY)

# Idempotent by its stamp: made again when a lock file or the project's own metadata changed.
$(READY): requirements.lock requirements-build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tierlog needs Python 3.11 or newer; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "python3 -m venv failed: on Debian and Ubuntu, install the package python3-venv"; exit 1; }
	@echo "installing into $(VENV) (some minutes the first time)"
	@$(PIP) install --require-hashes --no-deps -r requirements-build.lock
	@$(INSTALL) --require-hashes --no-deps --no-build-isolation -r requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

demo: venv
	@mkdir -p build
	@$(BIN)/python tests/demo/demo.py $(DEMO_OPTIONS)

PACKAGE ?= $(ROOM)
check: venv $(if $(PACKAGE),,s3-server)
	@exec env BIN=$(BIN) JOBS=$(JOBS) .ci/check $(PACKAGE)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

layers: venv
	$(BIN)/lint-imports

# Built once, a minute of CPU time, and outside of a test's time-out.
s3-server:
	@localstack/get-s3-server.sh versitygw >/dev/null

fast: venv s3-server
	$(PYTEST) -m "not slow and not clients" $(TESTS)

test: venv s3-server
	$(PYTEST) -m "not clients" -rs

# Files that have such tests: to import all others takes each worker half a minute. The longest ones begin first (tests/conftest.py).
marked = $(sort $(shell grep -rl 'mark\.$(1)' tests --include='test_*.py'))
slow: venv s3-server
	exec $(PYTEST) --no-loadscope-reorder --durations 40 -m "slow and not clients and not nightly" -rs $(or $(TESTS),$(call marked,slow))

# One after the other: each has the machine to itself. Those of tests/fuzz: make fuzz.
test-nightly: venv s3-server
	$(BIN)/pytest -m "nightly and not clients" -rs $(or $(TESTS),$(filter-out tests/fuzz/%,$(call marked,nightly)))

fuzz: venv
	$(BIN)/pytest tests/fuzz -s

soak: venv
	$(BIN)/python tests/soak/soak.py --minutes $(SOAK_MINUTES) $(SOAK_OPTIONS)

simulate: venv
	PYTHONPATH=tests/simulation $(BIN)/python tests/simulation/simulate.py --seeds $(SEEDS) --first-seed $(FIRST_SEED) \
	  $(SIMULATE_OPTIONS)

simulate-mutants: venv
	PYTHONPATH=tests/simulation $(BIN)/python tests/simulation/mutants.py --seeds $(MUTANT_SEEDS) \
	  --docs docs/explanation/simulation.md

chaos: venv $(if $(TIERED),s3-server)
	PYTHONPATH=tests/chaos $(BIN)/python tests/chaos/chaos.py --rounds $(ROUNDS) --faults "$(FAULTS)" \
	  $(if $(CHAOS_MINUTES),--minutes $(CHAOS_MINUTES)) $(if $(APART),--apart) $(if $(TIERED),--tiered) $(CHAOS_OPTIONS)

history: venv
	PYTHONPATH=tests/chaos $(BIN)/python tests/chaos/history_check.py --minutes $(MINUTES) $(HISTORY_OPTIONS)

# The oldest PySpark, before the newest one of the environment. Each task takes longer there: a part of the tests.
SPARK_TESTS := tests/integration/test_spark_read.py tests/integration/test_spark_tables.py
SPARK_CHOICE := columns or exactly or unknown or missing or metadata
test-spark-oldest: venv
	PYTHONPATH="$$(.ci/get-pyspark.sh $(BIN)/python)" $(BIN)/python -m pytest $(SPARK_TESTS) -k "$(SPARK_CHOICE)" --durations 3

test-clients: venv
	exec $(PYTEST) --no-loadscope-reorder --durations 20 -m clients -rs tests/clients

COMPILED := build/compiled
compiled: $(COMPILED)/.made

# It holds a copy of all that can be imported: each of it makes it stale.
$(COMPILED)/.made: $(READY) $(shell git ls-files -- '*.py')
	$(BIN)/python .ci/compile_hot.py $(COMPILED)
	@touch $@

# In process and in the brokers that they start: both find the compiled modules first. All with real clients:
# make test-compiled COMPILED_TESTS=tests/integration
COMPILED_TESTS ?= $(addprefix tests/unit/,groups handlers net protocol records replication storage transactions) tests/conformance
test-compiled: compiled s3-server
	PYTHONPATH=$(abspath $(COMPILED)) $(BIN)/python .ci/compile_hot.py --check
	PYTHONPATH=$(abspath $(COMPILED)) $(PYTEST) -m "not slow and not clients" $(COMPILED_TESTS)

# To continue after a run that broke off, or in which a case failed: make bench BENCH_OPTIONS=--add
bench: compiled
	$(BIN)/python tests/bench/versus.py --rounds $(ROUNDS) --seconds $(SECONDS) --compiled $(COMPILED) \
	  --docs docs/benchmarks.md $(BENCH_OPTIONS)

bench-alone: venv
	$(BIN)/python tests/bench/suite.py

# One case: make bench-cluster BENCH_OPTIONS="--add 'produce 64 KiB, 3 partitions'"
BENCH_CLUSTER = $(BIN)/python tests/bench/cluster.py --rounds $(ROUNDS) --kills $(KILLS) --seconds $(SECONDS) \
  --compiled $(COMPILED)
bench-cluster: compiled
	$(BENCH_CLUSTER) --docs docs/benchmarks.md $(BENCH_OPTIONS)

bench-cluster-alone: compiled
	$(BENCH_CLUSTER) --alone $(BENCH_OPTIONS)

# The revision's compiler was in src/ before it moved to .ci/.
bench-trees: compiled
	@test -n "$(BEFORE)" || { echo "name the other revision: make bench-trees BEFORE=HEAD~1"; exit 1; }
	@set -e; scratch=$$(mktemp -d); source="$$scratch/source"; \
	  trap 'git worktree remove --force "$$source" || true; rm -rf "$$scratch"' EXIT; \
	  git worktree add --quiet --detach "$$source" "$(BEFORE)"; \
	  compiler="$$source/.ci/compile_hot.py"; test -f "$$compiler" || compiler="$$source/src/compile_hot.py"; \
	  $(BIN)/python "$$compiler" "$$scratch/before"; \
	  $(BIN)/python tests/bench/trees.py "$$scratch/before" $(COMPILED) --rounds $(ROUNDS) --seconds $(SECONDS) \
	    $(BENCH_OPTIONS)

bench-tiered: compiled s3-server
	@localstack/get-s3-server.sh minio >/dev/null
	PYTHONPATH=$(abspath $(COMPILED)) $(BIN)/python tests/bench/tiered.py --server minio --bytes 3g \
	  --docs docs/benchmarks-tiered.md $(BENCH_OPTIONS)

# Maven has Spark's Kafka source for PySpark 4.0, which is the oldest that tierlog supports.
bench-spark: venv
	$(BIN)/python tests/bench/spark_live.py --peer-pyspark "$$(.ci/get-pyspark.sh $(BIN)/python)"
	$(BIN)/python tests/bench/spark_scan.py --rounds $(ROUNDS) --docs docs/benchmarks-spark.md \
	  --peer-pyspark "$$(.ci/get-pyspark.sh $(BIN)/python)" $(BENCH_OPTIONS)

bench-calm: venv
	$(BIN)/python tests/bench/calm.py --minutes $(CALM_MINUTES)

fmt: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: venv
	$(BIN)/python docs/generators/reference_pages.py docs/reference

# One file for all supported Python versions, with every hash; no index address and no path of this machine.
COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
  --custom-compile-command "make lock" --quiet
lock: venv
	$(BIN)/$(COMPILE) $(LOCK_OPTIONS) --extra dev pyproject.toml --output-file requirements.lock
	printf 'setuptools>=77\nwheel>=0.45\nuv==$(UV_VERSION)\n' | $(BIN)/$(COMPILE) $(LOCK_OPTIONS) - --output-file requirements-build.lock
	printf 'cyclonedx-bom\npip-audit\n' | $(BIN)/$(COMPILE) $(LOCK_OPTIONS) - --output-file requirements-supply-chain.lock

# A bill of materials in build/sbom.cdx.json, and known vulnerabilities of the locked packages.
TOOLS := build/supply-chain
supply-chain: venv
	test -x $(TOOLS)/bin/pip-audit || { $(PYTHON) -m venv $(TOOLS) && \
	  $(TOOLS)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-supply-chain.lock; }
	$(BIN)/python .ci/supply_chain.py --tools $(TOOLS)/bin --python $(BIN)/python $(SUPPLY_CHAIN_OPTIONS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis
