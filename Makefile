# Every target sets up .venv by itself; PYTHON chooses the interpreter, ARGS adds arguments for pytest.
PYTHON ?= python3
ARGS ?=

comma := ,

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
STAMP := $(VENV)/.installed
# The demo needs less, and is what somebody new waits for.
DEMO_STAMP := $(VENV)/.installed-demo
PYTEST := $(BIN)/python -m pytest

.PHONY: help install demo test test-real test-long lint format bench experiments experiments-quick clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 26

install: $(STAMP) ## set up .venv

# $(1): the extras.
define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 …" >&2; exit 1; }
@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) || { echo "'$(PYTHON) -m venv' failed (Debian: apt-get install python3-venv)" >&2; exit 1; }
@echo "Installing into $(VENV) …"
@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(1)]'
@touch $@
endef

$(STAMP): pyproject.toml
	$(call install,embedded$(comma)test$(comma)lint)

$(DEMO_STAMP): pyproject.toml
	$(call install,embedded)

demo: $(DEMO_STAMP) ## see it work, without any service
	$(BIN)/delivery demo

test: $(STAMP) ## needs neither Java nor Docker nor Redis
	$(PYTEST) -n 2 --dist worksteal -m "not real and not long" $(ARGS)

# Most of these tests wait, so four at once; then, alone, those that measure a rate. Both run, even if the first fails.
# $(1): what is chosen from, in pytest's words.
define run-real
tools/with_kafka.sh sh -c 'status=0; \
	  $(PYTEST) -n 4 --dist worksteal -m "($(1)) and not serial" $(ARGS) || status=$$?; \
	  $(PYTEST) -m "($(1)) and serial" $(ARGS) || status=$$?; \
	  exit $$status'
endef

test-real: export PATH := $(BIN):$(PATH)
test-real: $(STAMP) ## against real Kafka (Java 17+, Maven) and Redis
	$(call run-real,real and not long)

test-long: export PATH := $(BIN):$(PATH)
test-long: export TEST_SIZE := long
test-long: $(STAMP) ## the same in the sizes of a release check
	$(call run-real,real or long)

lint: $(STAMP) ## ruff, mypy, import contracts, sizes, what is under deploy/
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/mypy || status=1; \
	$(BIN)/lint-imports || status=1; \
	$(BIN)/python tools/check_sizes.py || status=1; \
	$(BIN)/python tools/check_deploy.py || status=1; \
	exit $$status

format: $(STAMP) ## let ruff put the code in order
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(STAMP) ## speed, against the floor measured in the same run
	$(BIN)/python -m tests.benchmarks

experiments: $(STAMP) ## five situations, counted at the endpoint, beside others' figures; about 15 min
	$(BIN)/python -m tests.experiments

experiments-quick: $(STAMP) ## the same with fewer events and halved times
	$(BIN)/python -m tests.experiments --quick

clean: ## remove what make made
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
