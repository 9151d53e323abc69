# Every target first sets up what it needs: a virtual environment in .venv, pinned packages, the build. Later runs use
# what is already there.

PYTHON ?= python3
DEVICE ?= cpu
WORKERS ?= auto
CORES  ?= $(shell nproc)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.packages-installed
BUILT  := $(VENV)/.extension-built

CPP_SOURCES := $(shell find csrc tests benchmarks -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

FOREIGN := $(PYTHON) -m tests.cpp.foreign_isa
FASHION := /usr/share/datasets/fashion-mnist

.PHONY: help demo images paper paper-smoke test fuzz mutants load numerics torch-tests sanitize sanitize-quick foreign-isa packages matrix bench \
	gpu-check cubin cuda-import lint format build clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): requirements-dev.txt requirements-dev-alone.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON); set PYTHON=/path/to/python3.10-or-newer"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-dev-alone.txt
	@touch $@

$(BUILT): $(READY) setup.py pyproject.toml $(wildcard csrc/*.* csrc/*/*.*)
	@echo "building the extension (a few minutes the first time)"
	MBF_REQUIRE_EXTENSION=1 $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

build: $(BUILT)  ## set up the environment and build the extension

demo: $(BUILT) images  ## train a small CNN with MBF, Adam, SGD and Muon; print a table, write a plot (DATA=folder: on other idx files)
	$(BIN)/python -m benchmarks.training $(if $(DATA),--data $(DATA))

paper: $(BUILT) images  ## repeat the paper's experiments, about an hour on two cores (DATA=folder: CIFAR and others; FULL=1, DEVICE=cuda)
	$(BIN)/python -m benchmarks.paper all --device $(DEVICE) --threads $(CORES) $(if $(DATA),--folder $(DATA)) $(if $(FULL),--full)

paper-smoke: $(BUILT)  ## run every experiment of the paper with a tiny budget on scikit-learn's digits
	$(BIN)/python -m benchmarks.paper smoke --device $(DEVICE)

images:  # Fashion-MNIST from Debian's package; without it the demo uses scikit-learn's digits
	@test -n "$(DATA)" -o -e $(FASHION) || ! command -v apt-get >/dev/null || { \
	  echo "installing Debian's dataset-fashion-mnist"; \
	  sudo=$$(test $$(id -u) = 0 || echo "sudo -n"); \
	  { $$sudo apt-get install -y -qq dataset-fashion-mnist \
	    || { $$sudo apt-get update -qq && $$sudo apt-get install -y -qq dataset-fashion-mnist; }; \
	  } >/dev/null 2>&1 || echo "could not install it; continuing without it"; }

test: $(BUILT)  ## run all tests, on all cores (WORKERS=0: in one process; DEVICE=cuda: on a GPU)
	$(BIN)/python -m pytest --device $(DEVICE) -n $(WORKERS) --dist loadscope --no-loadscope-reorder

torch-tests: $(BUILT)  ## run torch's own optimizer tests with MBF (TORCH_TESTS=folder: the test/ of torch's sources, same release)
	$(BIN)/python -m tests.torch_suite "$(TORCH_TESTS)"

fuzz: $(BUILT)  ## random uses of the optimizer and calls of the operators (SEQUENCES=, CALLS=, SEED=; ONLY=optimizer or operators)
ifneq ($(ONLY),operators)
	$(BIN)/python -m tests.fuzz optimizer $(if $(SEQUENCES),--sequences $(SEQUENCES)) $(if $(SEED),--seed $(SEED))
endif
ifneq ($(ONLY),optimizer)
	$(BIN)/python -m tests.fuzz operators $(if $(CALLS),--calls $(CALLS)) $(if $(SEED),--seed $(SEED))
endif

mutants: $(BUILT)  ## plant bugs in copies of the project and see that the tests notice them (NAMES="cuda triton-ticket": some of them)
	$(BIN)/python -m tests.mutants $(NAMES)

load: $(BUILT)  ## run large, long and concurrent runs (some minutes, 4 GB)
	$(BIN)/python -m pytest tests/load/suite.py

numerics: $(BUILT)  ## measure errors and training at extreme scales; write the plots of docs/numerics.md
	$(BIN)/python -m benchmarks.numerics

sanitize: $(READY)  ## the CPU kernels under the address, undefined-behaviour and thread sanitizers, with every size
	$(BIN)/python -m tests.cpp.sanitize

sanitize-quick: $(READY)  ## the same for two instruction sets with fewer expanded sizes, C++ only
	$(BIN)/python -m tests.cpp.sanitize --quick

foreign-isa:  ## NEON in qemu and AVX-512 emulated by SIMDe: the C++ tests (installs Debian's packages)
	@packages=$$($(FOREIGN) --missing); test -z "$$packages" || ! command -v apt-get >/dev/null || { \
	  echo "installing Debian's $$packages"; \
	  sudo=$$(test $$(id -u) = 0 || echo "sudo -n"); \
	  { $$sudo apt-get install -y -qq $$packages \
	    || { $$sudo apt-get update -qq && $$sudo apt-get install -y -qq $$packages; }; \
	  } >/dev/null 2>&1 || echo "could not install them"; }
	$(FOREIGN)

bench: $(BUILT)  ## time the kernels and whole optimizer steps, beside their targets (DEVICE=cuda: on a GPU)
	$(BIN)/python -m benchmarks.micro --full --device $(DEVICE)
	$(BIN)/python -m benchmarks.optimizers --device $(DEVICE)

gpu-check: $(BUILT)  ## on a machine with a GPU: tests, sanitizers, benchmarks, measured against predicted times; writes gpu-check.md (QUICK=1)
	$(BIN)/python -m benchmarks.gpu_check $(if $(QUICK),--quick) $(if $(filter cuda%,$(DEVICE)),--device $(DEVICE)) $(if $(OUTPUT),--output $(OUTPUT))

cubin: $(BUILT)  ## compile the GPU kernels for every architecture and write the tables of docs/gpu.md
	$(BIN)/python -m benchmarks.gpu_code

cuda-import:  ## build against the CUDA build of torch (3 GB, in .venv-cuda) and check what is registered
	$(PYTHON) -m benchmarks.gpu_code.cuda_import --environment .venv-cuda

packages:  ## build sdist and wheel into dist and try each in a fresh environment
	$(PYTHON) -m benchmarks.environments.packages

matrix:  ## try the wheel under several releases of torch (some 6 GB each), Python and numpy (ROWS="3.12:2.10.0 3.13")
	$(PYTHON) -m benchmarks.environments.matrix $(foreach row,$(ROWS),--row $(row))

lint: $(READY)  ## run the linters and check the formatting, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP_SOURCES)

format: $(READY)  ## apply the formatters
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_SOURCES)

clean:  ## remove everything that was built, including the environment
	rm -rf $(VENV) .venv-cuda build dist *.egg-info benchmark_results .pytest_cache .hypothesis .mypy_cache .ruff_cache .benchmarks
	rm -f mbf_kernels/_C*.so mbf_kernels/_build_failure.txt
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
