# What a person or CI runs on LaterMQ. Every target does its own set-up; `make` alone lists them.

BIN := .venv/bin
# The uv that set-up uses. Looked up when it is needed: set-up may install it first.
UV = $$(command -v uv || echo .tools/bin/uv)
# Files side by side in the order that tests/conftest.py gives them. Three on two cores: tests with real processes wait a
# good deal, and what is simulated computes meanwhile.
PYTEST := $(BIN)/pytest --durations=15 --numprocesses 3 --dist loadfile --no-loadscope-reorder

# What `make coverage` runs.
TESTS = tests/unit

# Tests start hundreds of Python processes, Spark's workers among them: what one has compiled the next need not.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long lint format coverage docs dist bench golden proto clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: ## uv, the environment in .venv, and Java where it is missing
	@scripts/setup

demo: setup ## orders, timers and a campaign on a broker that is killed, in about two minutes; KEEP=1 leaves it running
	@scripts/demo $(if $(filter-out 0,$(KEEP)),--keep)

test: lint ## lint, then every tier of tests at normal length
	$(PYTEST)

test-long: setup ## every tier of tests at full length
	LATERMQ_LONG=1 $(PYTEST)

lint: setup ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## rewrite the code in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

coverage: setup ## coverage by package of tests/unit, or of other tests: make coverage TESTS="tests/unit tests/fault"
	rm -rf .coverage && mkdir .coverage
	$(BIN)/coverage run -m pytest $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/python -m tests.support.coverage_table

docs: setup ## the pages as a site in build/site, with a reference from the code; fails on a broken link
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict

dist: setup ## build the wheel and the source distribution into dist/
	$(UV) build --no-build-isolation --python $(BIN)/python

bench: setup ## measure this machine
	$(BIN)/python -m tests.bench

golden: ## write tests/golden/data anew with Apache RocketMQ's own classes (needs Maven and a JDK)
	cd tests/golden/java && mvn --quiet --batch-mode compile exec:exec

proto: setup ## generate the Python module of messaging.proto
	$(BIN)/python -m grpc_tools.protoc --proto_path=src --python_out=src --pyi_out=src latermq/protocol/messaging/messaging.proto

clean: ## remove the environment and everything built: the tree as cloned
	rm -rf .venv .tools dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find src tests -type d \( -name __pycache__ -o -name target -o -name build \) -prune -exec rm -rf {} +
