# Every action anyone needs. `make demo` and `make test` need Python 3.11 and nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
PYTEST := env OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test lint format unit api e2e crds bench clean

demo: $(READY)  ## record an expert and clone it, on this machine
	$(BIN)/hindcast demo

test: lint unit  ## everything that needs no cluster

unit: $(READY)
	$(PYTEST) -n $(WORKERS) --ignore tests/control_plane --ignore tests/e2e

api: $(READY)  ## operator and CRDs against an API server of their own (KUBECONFIG): they take KubeRay away from it
	$(PYTEST) tests/control_plane

e2e: $(READY)  ## on the cluster that KUBECONFIG names, else on a kind cluster made for it
	PYTEST="$(PYTEST)" PATH="$(abspath $(BIN)):$$PATH" tools/e2e.sh

lint: $(READY)  ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

crds: $(READY)  ## write crds/, the schemas in the package and docs/reference.md from the models
	$(BIN)/python tools/generate_crds.py

bench: $(READY)  ## ours and the rival side by side; RLlib is installed in an environment of its own
	$(BIN)/python benchmarks/run_all.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[runtime,operator,dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache demo
