# What a stranger needs. Each target prepares .venv by itself (scripts/setup.sh) and says what the machine lacks.

VENV := .venv
BIN := $(VENV)/bin
export VENV
# A machine may be set to keep no bytecode. Then each Python process of the suite compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

# A whole file goes to one of six test processes, so that its Spark session or fleet starts once. The longest files come
# first, by tests/durations.txt (ARGS=--write-durations writes the table). Any pytest option goes into ARGS.
PYTEST_OPTIONS := -n 6 --dist loadfile --no-loadscope-reorder
ARGS ?=
# Classes that each JVM of the tests loads from an archive (tests/support/spark/spark_classes.py); optional.
SPARK_CLASSES := $(VENV)/spark-classes.jsa

SEEDS ?= 500
SEED_START ?= 0

SPARKS ?=

MINUTES ?= 1
SEED ?=
DRIVER = $(BIN)/python -m tests.chaos.driver
DRIVER_OPTIONS = $(if $(SEED),--seed $(SEED)) $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo demo-stream demo-night first-hour test test-all test-long jars test-matrix lint check simulate mutants mirror chaos recovery loss bench bench-quick docs setup doctor java clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:  ## run the flights pipeline end to end, with an embedded Valkey
	@scripts/setup.sh demo
	$(BIN)/python -m examples.demo

demo-stream:  ## load files as they arrive by a schedule, mend a broken one, and count the rows (a minute)
	@scripts/setup.sh demo-stream
	$(BIN)/python -m examples.demo --stream

demo-night:  ## one night of a small fleet: five things go wrong, and a receiver prints who is told what (3 minutes)
	@scripts/setup.sh demo-stream
	$(BIN)/python -m examples.night.night

first-hour: setup  ## do what docs/first-hour.md says, with a wheel in an empty folder, and print the seconds (a minute)
	$(BIN)/python -m tests.first_hour

test: setup $(SPARK_CLASSES)  ## run one test per promise and kind of failure, on real processes (ARGS="-k word")
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) -m "not long and not variant" $(ARGS)

test-all: setup $(SPARK_CLASSES)  ## run test and the variants: other modes, kill points, formats and platforms
	$(BIN)/python -m pytest $(PYTEST_OPTIONS) $(ARGS)

test-long: setup $(SPARK_CLASSES) jars  ## what takes minutes: a month of nights, TPC-H, Spark clusters, Spark on S3, two Sparks
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements-seaweedfs.txt
	SPARKS=3.5 $(BIN)/python -m tests.matrix --make
	$(BIN)/python -m pytest -m long $(ARGS)
	SPARKS=4.0 $(BIN)/python -m tests.matrix -m long -k test_delta

jars: setup  ## fetch Kafka, and the connectors of Spark to S3 and Delta tables, into tests/.jars, with Maven (SPARKS="4.0 newest kafka")
	$(BIN)/python -m tests.support.spark.jars $(or $(SPARKS),4.0 newest kafka)

test-matrix: setup  ## the Spark tests with PySpark 3.5, 4.0 and the newest (SPARKS="4.0 newest")
	SPARKS="$(SPARKS)" $(BIN)/python -m tests.matrix $(ARGS)

lint: setup  ## ruff, mypy, the import contracts, plain names, and whether each test module can be imported
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.plain_names
	@tests=$$($(BIN)/python -m pytest --collect-only --quiet --quiet 2>&1) || { echo "$$tests" | tail -40; exit 1; }

# Beside it one process compiles the test modules, which the six test processes would otherwise all do at the same time.
$(SPARK_CLASSES): constraints.txt | setup
	-@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1 & \
	$(BIN)/python -m tests.support.spark.spark_classes; wait

check: lint test  ## lint, then test

simulate: setup  ## run simulated histories (SEEDS=500 SEED_START=0)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(SEED_START)
	$(BIN)/python -m tests.simulation --schedules --seeds $$(($(SEEDS) / 8)) --start $(SEED_START)

mutants: setup  ## search simulated histories for each planted bug (SEED_START=0)
	$(BIN)/python -m tests.simulation --planted --start $(SEED_START)

mirror: setup  ## the same histories on the real store and its scripts too (SEEDS=500)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(SEED_START) --mirror

chaos: setup  ## a real fleet under kill -9, freezes, outages; a ledger at the end (MINUTES=1 SEED=n)
	$(DRIVER) run --minutes $(MINUTES) $(DRIVER_OPTIONS)

recovery: setup  ## how fast the work of a killed worker and coordinator goes on
	$(DRIVER) recovery $(DRIVER_OPTIONS)

loss: setup  ## messages lost in 40 SIGKILLs by our report path, and by a kombu queue
	$(DRIVER) loss $(DRIVER_OPTIONS)

bench: setup  ## measure beside Celery, docket, DBOS, Prefect, dlt and plain Spark (ARGS="--cases a,b")
	$(BIN)/python -m bench $(ARGS)

bench-quick: setup  ## the same with one small size of each case, without f and g
	$(BIN)/python -m bench --quick $(ARGS)

docs:  ## build the site of the documentation, strictly, into build/docs; needs no network
	@scripts/setup.sh docs
	$(BIN)/python -m scripts.generated_pages
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs . build/docs

setup:  ## make .venv for development, if it is not there and current
	@scripts/setup.sh dev

doctor:  ## say whether this machine has what Unstuck needs
	@scripts/setup.sh check

java:  ## install Java 17 or newer with apt-get, dnf or brew
	@scripts/setup.sh java

clean:  ## remove .venv, caches and builds; never the jobs (.unstuck) or the warehouse
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache build dist *.egg-info src/*.egg-info
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
