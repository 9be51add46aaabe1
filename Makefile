# What a developer types, and what CI runs. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
KAFKA_LOCAL := $(PYTHON) deploy/kafka-local/kafka_local.py

.DEFAULT_GOAL := help
.PHONY: help demo test check bench kafka lock venv $(VENV) clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## Schedule a slice of a real cluster trace and write a report; needs no broker
	$(VENV)/bin/streamsched demo

test: $(INSTALLED)  ## Run all tests, those on a real Kafka and in a real Chromium too; starts the broker itself
	@PYTHON=$(VENV)/bin/python sh deploy/preflight.sh broker
	@$(VENV)/bin/python -m tests.unit.reporting.browser
	$(VENV)/bin/pytest

check: $(INSTALLED)  ## Lint, format, types and layers, as CI does
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

bench: $(INSTALLED)  ## Measure speed and memory; results with machine and commit
	@PYTHON=$(VENV)/bin/python sh deploy/preflight.sh broker
	$(VENV)/bin/python -m tests.benchmarks

kafka:  ## Start an Apache Kafka on 127.0.0.1:9092 for work by hand
	@sh deploy/preflight.sh jvm
	$(KAFKA_LOCAL) start
	@echo "Stop it with: $(KAFKA_LOCAL) stop"

lock:  ## Write requirements.lock anew from pyproject.toml
	@sh deploy/preflight.sh
	PYTHON=$(PYTHON) sh deploy/lock.sh

venv: $(INSTALLED)  ## Create or update .venv from the lock; the others do so when needed

clean:  ## Remove what the other targets made, the local Kafka and its data too
	-$(KAFKA_LOCAL) stop
	rm -rf $(VENV) build dist out deploy/kafka-local/.work .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV): $(INSTALLED)

# The editable install holds the entry points, so it follows pyproject.toml too.
$(INSTALLED): requirements.lock pyproject.toml
	@PYTHON=$(PYTHON) sh deploy/preflight.sh
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
