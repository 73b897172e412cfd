# make demo   install, then FOCUS against six other methods on rotated digits (no download of data)
# make quick  lint, types, and the quick tests that need no network, browser or Flower: about four minutes
# make test   install, then everything CI checks
PYTHON ?= python3
VENV   ?= .venv
# where tests keep the data sets they fetch (about 320 MB); users have theirs in the cache folder
export FOCUSFL_DATA ?= $(CURDIR)/.data
# tests at the same time: each file is one process's
JOBS   ?= 2
# tests start hundreds of processes: none compiles the same files again
unexport PYTHONDONTWRITEBYTECODE
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# a package is a wheel whose hash is in requirements/; focusfl itself is then installed without the index
LOCKED := $(PIP) install --quiet --require-hashes --no-deps --only-binary :all: -r
ITSELF := $(PIP) install --quiet --no-index --no-build-isolation -e

.PHONY: demo quick test check bench bench-peers format lock clean

demo: $(VENV)/.base
	$(BIN)/focusfl run demo --out runs/demo --overwrite

quick: $(VENV)/.dev check
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not network and not browser and not flower and not slow"

test: $(VENV)/.dev check
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.base
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/mnist.py
	$(BIN)/python benchmarks/scale.py

# beside other libraries, each in an environment of its own (7 GB); make bench-peers ARGS="--work small"
bench-peers: $(VENV)/.base
	$(BIN)/python benchmarks/peers/run.py --venvs .bench-peers $(ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# find the versions and hashes of what is installed anew, with the .venv as it stands; see tools/lock.py
lock:
	$(BIN)/python tools/lock.py

$(VENV)/.base: pyproject.toml requirements/cpu.txt requirements/base.txt requirements/cuda.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "focusfl needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a minute or two) ..."
	@$(LOCKED) requirements/cpu.txt 2> $(VENV)/cpu.log || grep "No matching distribution" $(VENV)/cpu.log \
	  || { cat $(VENV)/cpu.log; exit 1; }
	$(LOCKED) requirements/base.txt
	@if $(PIP) check | grep -E '^torch .* requires (cuda|nvidia|triton)'; then \
	  echo "Installing the libraries that this build of torch needs for CUDA ..."; \
	  $(LOCKED) requirements/cuda.txt; fi
	$(ITSELF) .
	@touch $@

$(VENV)/.dev: $(VENV)/.base requirements/dev.txt
	@echo "Installing the development tools ..."
	$(LOCKED) requirements/dev.txt
	$(ITSELF) ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
