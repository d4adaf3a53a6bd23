# From a fresh clone: `make run` trains a 1-bit network, `make test` tests everything.
# Every target sets up .venv by itself; nothing is redone when nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(wildcard fedbnn_core/packed/csrc/*.[ch] fedbnn_core/binary/csrc/*.[ch])
FUZZ_RUNS ?= 1000000
# Test files at a time: two more than there are cores, because many wait; at most 4.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min((os.cpu_count() or 1) + 2, 4))')
# Which build of torch: cpu, cu126, cu130, ...; empty takes what pip finds first. pip must
# be configured to find that build.
TORCH ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

TORCH_BUILD := $(if $(TORCH),'torch==2.13.0+$(TORCH)' 'torchvision==0.28.0+$(TORCH)')

.PHONY: help setup run test test-cpus check dist bench bench-avx2 fuzz test-deploy system-deps clean

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## Create .venv and install FedBNN into it (TORCH=cu126: torch for a GPU)
ifneq ($(TORCH),)
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.__version__.endswith("+$(TORCH)"))' || \
		$(BIN)/python -m pip install --quiet $(TORCH_BUILD) || \
		{ echo "pip found no torch build +$(TORCH). Name an index that has it in PIP_EXTRA_INDEX_URL (torch's installation page names one)."; exit 1; }
endif

$(STAMP): pyproject.toml $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "FedBNN needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing FedBNN into $(VENV) (a minute or two the first time) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[device,simulation,privacy,bench,dev]' $(TORCH_BUILD)
	@touch $@

run: $(STAMP) ## Train a 1-bit network in a simulated federation on the embedded data
	@$(BIN)/fedbnn run $(ARGS)

test: $(STAMP) ## Run all tests, several files at a time (one: ARGS='-n 0')
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-cpus: $(STAMP) ## Run the tests that train as CPUs with fewer instructions would round
	@$(BIN)/python -m tests.cpu_settings -n $(WORKERS) $(ARGS)

test-deploy: $(STAMP) ## Run the deployment tests: fleets, faults, images (20 minutes; root for some)
	@$(BIN)/python -m pytest -m 'deploy or slow' tests/accelerator tests/apps/test_resume.py tests/deploy tests/packed/mcu tests/training $(ARGS)

check: $(STAMP) ## Lint, check the formatting and the types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

dist: $(STAMP) ## Build wheel, source distribution and Flower's bundle into dist/
	@rm -rf dist build/lib build/bdist.* && mkdir -p dist
	@$(BIN)/python -c 'from setuptools import build_meta as b; b.build_sdist("dist"); b.build_wheel("dist")' > build.log 2>&1 || { cat build.log; exit 1; }
	@rm -f build.log
	@cd dist && ../$(BIN)/flwr build --app ../flower-app
	@ls dist

bench: $(STAMP) ## Run the benchmarks (minutes; use an idle machine)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-avx2: $(STAMP) ## The packed benchmark as on a CPU with AVX2 only (Linux, newer Intel CPUs)
	@mkdir -p build
	@$(CC) -O1 -Wall -Wextra -shared -fPIC -o build/avx2_only.so benchmarks/avx2_only.c
	@LD_PRELOAD=$(CURDIR)/build/avx2_only.so $(BIN)/python -m benchmarks packed

fuzz: $(STAMP) ## Fuzz the packed reader and runtime (needs clang; FUZZ_RUNS=1000000)
	@command -v clang >/dev/null || { echo "clang is not installed; run make system-deps as root"; exit 1; }
	@mkdir -p build/fuzz/found
	@$(BIN)/python -m tests.packed.fuzz.seeds build/fuzz/seeds
	@clang -std=c11 -g -O2 -ffp-contract=off -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-Ifedbnn_core/packed/csrc -o build/fuzz/fuzz tests/packed/fuzz/fuzz_open.c \
		$(filter-out %/pymodule.c,$(wildcard fedbnn_core/packed/csrc/*.c)) -lm -pthread
	@cd build/fuzz && ./fuzz -runs=$(FUZZ_RUNS) -max_len=4096 -timeout=20 -rss_limit_mb=1500 \
		-print_final_stats=1 found seeds

system-deps: ## Install what optional tests and make fuzz use (Debian or Ubuntu, as root)
	@apt-get update -qq
	@apt-get install -y --no-install-recommends buildah chromium chromium-driver clang dataset-fashion-mnist debootstrap gcc gcc-aarch64-linux-gnu gcc-arm-none-eabi gcc-riscv64-unknown-elf iproute2 libc6-dev-arm64-cross libclang-rt-dev libnewlib-arm-none-eabi make picolibc-riscv64-unknown-elf qemu-system-arm qemu-system-misc qemu-user

clean: ## Remove .venv, caches and build products (runs/ is kept)
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .flwr
	@find . -name __pycache__ -prune -exec rm -rf {} +
	@find fedbnn_core -name '*.so' -delete
