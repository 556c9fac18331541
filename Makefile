# Everything runs in .venv; `make help` lists the targets.
PYTHON ?= python3
CXX ?= g++
TORCH ?= 1
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

NATIVE := $(wildcard cpp/*.cc cpp/*.h bindings/*.cc bindings/*.h) CMakeLists.txt pyproject.toml
CORE_SOURCES := $(filter-out %.test.cc %.perf.cc,$(wildcard cpp/*.cc))
TEST_SOURCES := $(wildcard cpp/*.test.cc)
TEST_OBJECTS := $(patsubst cpp/%.cc,build/sanitized/%.o,$(CORE_SOURCES) $(TEST_SOURCES))
SANITIZE := -std=c++20 -O1 -g -Wall -Wextra -Wshadow -Werror -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

.PHONY: help demo setup test test-cpp test-python test-slow lint docs bench bench-cpp wheel clean

help:
	@echo "make demo       plan an all-reduce for two DGX A100 boxes (sets up .venv, no torch)"
	@echo "make setup      .venv with everything a developer needs (TORCH=0 leaves torch out)"
	@echo "make test       setup, then lint, types, C++ tests (ASan + UBSan) and Python tests"
	@echo "make test-slow  the tests marked slow"
	@echo "make bench      the tables of benchmarks/ (minutes)"
	@echo "make bench-cpp  the core's own times against their goals"
	@echo "make docs       regenerate the generated pages of docs/ (minutes: eight clusters are compared)"
	@echo "make wheel      a wheel in dist/"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The package itself, without developer tools: what `make demo` needs.
$(VENV)/.package: $(BIN)/python $(NATIVE)
	$(PIP) install -q "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.26" "ninja>=1.11"
	$(PIP) install -q --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.package pyproject.toml
	$(PIP) install -q $$($(BIN)/python -c "import tomllib; print(*(repr(d) for d in tomllib.load(open('pyproject.toml','rb'))['dependency-groups']['dev']))" | tr -d "'")
	@touch $@

$(VENV)/.torch: $(BIN)/python
	$(PIP) install -q torch==2.13.0
	@touch $@

setup: $(VENV)/.dev $(if $(filter-out 0,$(TORCH)),$(VENV)/.torch)

demo: $(VENV)/.package
	$(BIN)/coppice plan examples/two-dgx-a100.json --collective all_reduce -o plan.json
	$(BIN)/coppice verify plan.json

build/sanitized/%.o: cpp/%.cc $(wildcard cpp/*.h)
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE) -Icpp -c $< -o $@

build/cpp_tests: $(TEST_OBJECTS)
	$(CXX) $(SANITIZE) $^ -pthread -o $@

test-cpp:
	@$(MAKE) --no-print-directory -j$(JOBS) build/cpp_tests
	./build/cpp_tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-python: setup
	$(BIN)/python -m pytest -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest -m slow

test: setup lint test-cpp test-python

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/clusters.py

build/%.perf: cpp/%.perf.cc $(CORE_SOURCES) $(wildcard cpp/*.h)
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O3 -DNDEBUG -Icpp $< $(CORE_SOURCES) -pthread -o $@

bench-cpp: $(patsubst cpp/%.cc,build/%,$(wildcard cpp/*.perf.cc))
	@for perf in $^; do ./$$perf || exit 1; done

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/forest.py
	$(BIN)/python benchmarks/simulator.py

wheel: $(BIN)/python
	$(PIP) install -q build
	$(BIN)/python -m build --wheel

clean:
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache
