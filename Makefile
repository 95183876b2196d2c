# Every target works on a fresh machine with Python 3.11 or later: it makes .venv and installs there what it needs,
# once, and again when pyproject.toml changes. Another interpreter: make PYTHON=python3.12 plan
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed is compiled to bytecode where it is first imported, not all of it at once: most modules of scipy,
# torch and plotly never are. So bytecode is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL := $(PIP) --editable
# What an extra asks for, without the package itself: installing that again takes its command away for a moment.
ASKED := import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
ADD = $(BIN)/python -c '$(ASKED)' $(1) | $(PIP) --requirement /dev/stdin

.PHONY: accuracy everything fuzz help mutants plan test test-all test-every test-frameworks test-testbed test-torch validate validate-full validate-gpu lint bench docs site examples calibrate calibrate-check readme clean
# One pip at a time in one environment, also under `make -j`; pytest spreads files over the cores by itself: what a file
# works out once serves all of its tests, and long files come first (tests/conftest.py).
.NOTPARALLEL:
SPREAD := -n auto --dist loadfile --no-loadscope-reorder

help:
	@echo "make plan      a first plan: Llama 3 8B on 32 A100 and 32 H100"
	@echo "make test      the test suite, without what takes more than a few seconds"
	@echo "make test-all  every test, as in CI, and what needs torch"
	@echo "make test-frameworks MEGATRON=SOURCE  exports read by the frameworks' own parsers and model builders"
	@echo "make validate  plans run for real on an emulated cluster (root, Linux), held against predictions"
	@echo "make validate-full  the same five times over, real kernels, one device: half an hour, on a quiet machine"
	@echo "make validate-gpu GPU=NAME  kernels and training steps of one GPU, a few minutes"
	@echo "make fuzz      10,000 damaged commands and files, 1,000 damaged plans and caches; laws in 100 markets, plans of 200 fleets (CASES=, MARKETS=, SEED=)"
	@echo "make mutants   small faults in every room, and whether its tests notice (EACH=, SEED=)"
	@echo "make lint      ruff, mypy, import-linter"
	@echo "make bench     speeds and sizes beside their targets"
	@echo "make docs      the JSON Schemas in docs/schema"
	@echo "make site      the documentation site in build/site; a broken link fails"
	@echo "make examples  what the examples print, into examples/*.out"
	@echo "make readme    what README and docs show as printed"
	@echo "make accuracy  errors of a sample of published runs beside those recorded"
	@echo "make calibrate hwdb/efficiency and hwdb/collectives from measured tables and published runs"
	@echo "make clean     remove what these targets made"

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "tangram-sim needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another interpreter: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "making $(VENV) (once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@echo "installing tangram-sim into $(VENV) (once)"
	@$(INSTALL) .
	@touch $@

# All that any test needs, in one installation.
everything: $(VENV)/.made
	@echo "installing what any test needs into $(VENV)"
	@$(INSTALL) ".[test,validate,calibrate]"
	@touch $(foreach extra,.installed .installed-test .installed-validate .installed-calibrate,$(VENV)/$(extra))

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing what the tests need (once)"
	@$(call ADD,test)
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed-test
	@echo "installing what the linters need (once)"
	@$(call ADD,lint)
	@touch $@

plan: $(VENV)/.installed
	@$(BIN)/tangram plan llama3-8b dgx-a100-h100 --global-batch 256 --seq 8192

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow" --hypothesis-profile fast $(SPREAD)

$(VENV)/.installed-validate: $(VENV)/.installed-test
	@echo "installing torch (once)"
	@$(call ADD,validate)
	@touch $@

# Every test, those that take more than a few seconds too; what needs torch; a minute of real runs.
test-all: test-every test-torch test-testbed

test-every: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(SPREAD) --ignore tests/with_torch

test-torch: $(VENV)/.installed-validate
	$(BIN)/python -m pytest tests/with_torch

# On shaped links where namespaces can be made (a run that fails there fails), over loopback where they cannot.
test-testbed: $(VENV)/.installed-validate
	$(BIN)/tangram validate testbed --suite minute --anywhere -o build/testbed-minute

# Exports read by the frameworks' own parsers and built on the meta device, each in an environment of its own under
# build/. MEGATRON: a folder with Megatron-LM's source, or a git directory that has the tag core_v0.16.1.
MEGATRON ?=
test-frameworks: $(VENV)/.installed-test
	$(BIN)/python -m tests.frameworks build/frameworks $(if $(MEGATRON),--megatron $(MEGATRON))

validate: $(VENV)/.installed-validate
	$(BIN)/tangram validate testbed --suite small -o validate/results/small

validate-full: $(VENV)/.installed-validate
	$(BIN)/tangram validate testbed --suite full -o validate/results/full
	$(BIN)/tangram validate device --device cpu -o validate/results/device-cpu.csv

# One GPU, unattended: raw timings of kernels, and 48 training steps predicted and measured. GPU is a row of gpus.csv.
validate-gpu: $(VENV)/.installed-validate
	@test -n "$(GPU)" || { echo "name the GPU: make validate-gpu GPU=H200-SXM-141GB (rows: tangram hw list)" >&2; exit 2; }
	$(BIN)/tangram calibrate kernels --device cuda --gpu $(GPU) --dtype bf16,fp16,fp32 \
	  -o traces/microbench/$(GPU).json
	$(BIN)/tangram validate device --device cuda --gpu $(GPU) -o validate/results/device-$(GPU).csv \
	  --trace traces/microbench/$(GPU)-suite.json

CASES ?= 10000
MARKETS ?= 100
SEED ?= 1
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m benchmarks anywhere --markets --seeds $(MARKETS) --from $(shell expr $(SEED) \* 1000)
	$(BIN)/python -m tests.fuzz.corruptions --cases $$(( $(CASES) / 10 )) --seed $(SEED)
	FLEETS=$$(( $(CASES) / 50 )) $(BIN)/python -m pytest tests/unit/post_training/test_search.py -k brute_force

EACH ?= 20
mutants: $(VENV)/.installed-test
	$(BIN)/python -m tests.mutants --each $(EACH) --seed $(SEED)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.installed-calibrate: $(VENV)/.installed
	@echo "installing the measured tables (once)"
	@$(call ADD,calibrate)
	@touch $@

calibrate: $(VENV)/.installed-calibrate
	$(BIN)/python -m tangram_validate.calibration hwdb/efficiency
	$(BIN)/python -m tangram_validate.calibration.memory traces/published/training_runs.csv hwdb/efficiency/memory.csv
	$(BIN)/python -m tangram_validate.calibration.stacks traces/published/training_runs.csv \
	  traces/published/training_runs_2.csv hwdb/efficiency --keep generic \
	  --table benchmarks/results/accuracy.md --cache build/played
	$(BIN)/python -m tangram_validate.collectives hwdb/collectives

# The rows that take a minute to write again must come out as they are; those of stacks take four more (calibrate).
# The same is tested in tests/unit: test_calibration.py, test_collective_rows.py, test_memory_peaks.py.
REWRITTEN := build/hwdb-rewritten
calibrate-check: $(VENV)/.installed-calibrate
	@rm -rf $(REWRITTEN) && mkdir -p build && cp -r hwdb $(REWRITTEN)
	$(BIN)/python -m tangram_validate.calibration $(REWRITTEN)/efficiency --quiet
	$(BIN)/python -m tangram_validate.calibration.memory traces/published/training_runs.csv $(REWRITTEN)/efficiency/memory.csv >/dev/null
	$(BIN)/python -m tangram_validate.collectives $(REWRITTEN)/collectives >/dev/null
	diff -r hwdb $(REWRITTEN)

# After a change of the cost model: what README and docs show as printed.
readme: $(VENV)/.installed-test
	$(BIN)/python -m docs.snippets README.md docs/how-to/*.md docs/models/*.md

# Errors of a sample of published runs beside those recorded; the judge of what was left out is calibration.stacks.
accuracy: $(VENV)/.installed
	@$(BIN)/python -m tangram_validate.calibration.shipped traces/published/training_runs.csv \
	  benchmarks/results/accuracy.csv

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

docs: $(VENV)/.installed
	$(BIN)/python -m tangram_sim.cli.schemas docs/schema

$(VENV)/.installed-site: $(VENV)/.installed
	@echo "installing what the site is made with (once)"
	@$(call ADD,site)
	@touch $@

site: $(VENV)/.installed-site
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build --strict --quiet

examples: $(VENV)/.installed-test
	for example in examples/*.py; do $(BIN)/python $$example > $${example%.py}.out || exit 1; done
	$(BIN)/python -m docs.notebook examples/*.ipynb

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
