# Every development task. `make demo` and `make test` need only Python 3.11. docs/checks.md says what each layer of tests
# proves.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RLLIB ?= .venv-rllib
RLLIB_READY := $(RLLIB)/.ready
WORKERS ?= 2
WAITING ?= 4
API_WORKERS ?= 3
E2E_WORKERS ?= 2
AZURITE := $(if $(shell command -v npm),.cache/azurite/.ready)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE_TAG ?= $(VERSION)
IMAGES ?= operator runtime
IMAGE_LABELS = --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD)
# Python compiles a module at its first import; most modules of a package are never imported. Without the compiled files
# each process would compile again what it imports, and a Ray that starts would take twice the time.
INSTALL := pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
PYTEST := env OMP_NUM_THREADS=1 $(BIN)/python -m pytest
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
WITHOUT_CLUSTER := --ignore tests/control_plane --ignore tests/e2e --ignore tests/interop
QUICK := not (slow or ray or stores or faults or learning or docs or minutes)

.PHONY: demo test test-all without-cluster stores soak gpu lint format interop api packages site e2e crds images bench clean

demo: $(READY)  ## record an expert and clone it on this machine
	$(BIN)/hindcast demo

test: lint  ## style, types, contracts, and the quick tests (3 minutes)
	$(PYTEST) $(PARALLEL) $(WITHOUT_CLUSTER) -m "$(QUICK)" $(FLAGS)

test-all: lint without-cluster  ## everything that needs no cluster
	$(MAKE) --jobs 2 --output-sync=target stores interop  # both mostly wait

without-cluster: $(READY)  ## the tests of test-all but stores and interop
	HINDCAST_CHECKS=all $(PYTEST) $(PARALLEL) $(WITHOUT_CLUSTER) -m "not (stores or minutes)" $(FLAGS)

stores: $(READY) $(AZURITE)  ## object stores that fail, and servers that are killed
	HINDCAST_CHECKS=all $(PYTEST) -n $(WAITING) --dist load tests/stores $(FLAGS)

soak: $(READY) $(AZURITE)  ## hours: many more kills, faults and random examples, different ones each time
	HINDCAST_CHECKS=soak $(PYTEST) $(PARALLEL) $(WITHOUT_CLUSTER) -m "soak or hypothesis" --timeout 14400 $(FLAGS)

gpu: $(READY)  ## trainings on this machine's GPU
	$(BIN)/python -c "import torch; assert torch.cuda.is_available(), 'torch finds no CUDA device here'"
	$(PYTEST) -m gpu tests/run tests/learn $(FLAGS)

interop: $(READY) $(RLLIB_READY)  ## compare with RLlib, d3rlpy and writers of tables, which have their own environment
	HINDCAST_RLLIB_PYTHON=$(abspath $(RLLIB))/bin/python $(PYTEST) -n $(WORKERS) --dist loadfile tests/interop

azurite: .cache/azurite/.ready  ## install the Azure server of tests/stores; needs node and npm

.cache/azurite/.ready:
	mkdir -p $(@D)
	echo '{"private": true}' > $(@D)/package.json
	cd $(@D) && npm install --ignore-scripts --no-audit --no-fund --loglevel=error azurite@3.37.0
	touch $@

api: $(READY)  ## operator and CRDs against a dedicated API server (KUBECONFIG): the tests remove KubeRay from it
	$(PYTEST) -m alone tests/control_plane
	$(PYTEST) -n $(API_WORKERS) --dist loadfile -m "not alone" tests/control_plane

e2e: $(READY)  ## on the cluster in KUBECONFIG, else on a new kind cluster
	PYTEST="$(PYTEST)" WORKERS=$(E2E_WORKERS) PATH="$(abspath $(BIN)):$$PATH" tools/e2e.sh $(PARTS)

lint: $(READY)  ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

crds: $(READY)  ## write all generated files: CRDs, schemas, stubs, generated docs pages and tables
	$(BIN)/python tools/generate_crds.py

images:  ## build both images; DOCKER_BUILD_FLAGS="--build-arg TORCH=torch==2.13.0+cpu …" builds without CUDA
	set -e; for image in $(IMAGES); do docker build $(DOCKER_BUILD_FLAGS) --target $$image $(IMAGE_LABELS) \
		--tag hindcast-$$image:$(IMAGE_TAG) .; done

packages: $(READY)  ## build wheel and sdist into dist/, check them, and install the wheel into an empty environment
	rm -rf dist .cache/wheel
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv .cache/wheel
	.cache/wheel/bin/python -m $(INSTALL) --constraint constraints.txt dist/*.whl
	.cache/wheel/bin/hindcast --version
	.cache/wheel/bin/kubectl-hindcast validate examples/cartpole.yaml

site: $(READY)  ## build the documentation site into build/site; a broken link fails
	$(BIN)/python -m sphinx --quiet --fail-on-warning --builder html docs build/site

bench: $(READY) $(RLLIB_READY)  ## Hindcast and its rivals side by side
	$(BIN)/python benchmarks/run_all.py --rllib $(abspath $(RLLIB))/bin/python

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch into $(VENV): a minute, or several for the CUDA build of some gigabytes"
	@$(BIN)/python -m $(INSTALL) --constraint constraints.txt "torch==2.13.0"
	@echo "Installing everything else: about a minute"
	@$(BIN)/python -m $(INSTALL) --constraint constraints.txt --editable ".[runtime,operator,serve,docs,dev]"
	touch $(READY)

# RLlib, d3rlpy and writers of tables, with torch, Ray and all else that they need from the project's own environment.
$(RLLIB_READY): $(READY)
	$(PYTHON) -m venv $(RLLIB)
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > \
		$$($(RLLIB)/bin/python -c "import site; print(site.getsitepackages()[0])")/project.pth
	$(RLLIB)/bin/python -m $(INSTALL) --constraint constraints.txt "ray[rllib]" msgpack-numpy lz4
	$(RLLIB)/bin/python -m $(INSTALL) --no-deps "d3rlpy==2.8.1"
	$(RLLIB)/bin/python -m $(INSTALL) gym structlog colorama dataclasses-json h5py tqdm scikit-learn
	$(RLLIB)/bin/python -m $(INSTALL) --constraint constraints.txt datasets duckdb polars
	touch $(RLLIB_READY)

clean:
	rm -rf $(VENV) $(RLLIB) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache demo
