# Every target sets up what it needs from a bare clone; a second run is fast.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-spark check format bench deploy destroy lock clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BENCHMARKS := rendezvous splitting federation dynamic
SPARK := 4.1.1
# Its Node comes first: the system's may be end-of-life.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CDK_DISABLE_CLI_TELEMETRY := true

help:       ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: .venv/ready node_modules/ready  ## virtual environment, Node and the CDK command line

demo: setup ## the whole of it on the embedded cloud: deploy, use, reconcile, stop
	python -m sluice.local.demo

test: setup ## all suites but the slow ones
	python -m pytest -m "not slow"

test-slow: setup test-spark ## the suites that take longer
	python -m pytest -m slow

test-spark: build/spark-$(SPARK)/ready ## the Spark package's tests, on Spark itself
	build/spark-$(SPARK)/bin/python -m pytest --confcutdir=tests/spark tests/spark

check: setup ## lint, types, and what may import what
	ruff check
	ruff format --check
	mypy
	lint-imports

format: setup ## what the linter can do by itself
	ruff check --fix
	ruff format

bench: setup ## every benchmark, side by side with what it is compared to
	for name in $(BENCHMARKS); do python -m benchmarks.$$name --json; done

deploy: setup ## cdk deploy with your AWS credentials and region
	node_modules/.bin/cdk deploy --all

destroy: setup ## delete what was deployed; protected state stays
	node_modules/.bin/cdk destroy --all

lock: setup ## write requirements.txt anew from pyproject.toml
	rm -f requirements.txt
	pip-compile --quiet --all-extras --strip-extras --no-emit-index-url --no-emit-find-links -o requirements.txt pyproject.toml

clean: ## everything that a clone doesn't have
	-[ -x .venv/bin/sluice ] && .venv/bin/sluice local down
	rm -rf .venv node_modules build cdk.out

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sluice needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	python -m pip install --quiet --requirement requirements.txt
	python -m pip install --quiet --no-deps --editable .
	touch $@

build/spark-$(SPARK)/ready: spark/pyproject.toml requirements.txt
	@command -v java > /dev/null || { echo "Spark needs Java 17: apt-get install openjdk-17-jre-headless"; exit 1; }
	$(PYTHON) -m venv build/spark-$(SPARK)
	build/spark-$(SPARK)/bin/pip install --quiet --constraint requirements.txt "pyspark==$(SPARK)" --editable spark \
		pytest pytest-timeout hypothesis "moto[s3,sqs]" boto3
	touch $@

node_modules/ready: package.json .venv/ready
	npm install --no-package-lock --no-audit --no-fund --loglevel=error
	touch $@
