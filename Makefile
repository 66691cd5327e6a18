# `make demo` and `make test` need Python >= 3.11 with venv and pip, and make; they install the rest
# into .venv. Stamp files in .venv record what was installed, so that a second run starts at once.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
JOBS ?= 2

# Without an NVIDIA driver the CPU build of PyTorch is all that is needed, and CUDA's gigabytes are
# not downloaded. Where the package index holds no such build, name one that does: PyTorch's
# installation page says which, `make demo TORCH_INDEX=...`.
TORCH ?= 2.13.0
TORCH_INDEX ?=

# Triton that torch's CPU build does not bring; its CUDA build pins one of its own.
TRITON ?= 3.6.0

# Only plain PyTorch code is used of these; the CUDA tools and plotting they ask for are not.
NO_DEPS = xlstm==2.0.6 mlstm_kernels==2.0.6 hyper-connections==0.4.11

# A minute of tests, for while one works: the rules of the house, every diagnostic, the front end, and
# of every step what the tables of ops and functions are held by.
QUICK = tests/test_house.py tests/test_rooms.py tests/test_explain.py tests/syntax tests/elaborate \
    tests/ir/test_meaning.py tests/ir/test_meaning_ops.py tests/ir/test_text.py tests/ir/test_verify.py \
    tests/ir/test_verify_forms.py tests/functions tests/test_tables.py tests/autodiff/test_chunk_gradients.py \
    tests/autodiff/test_elementwise.py tests/recurrence/chunk/test_matrix.py tests/schedule/test_partition.py \
    tests/tile/test_verifier.py tests/backends/eager/test_ops.py tests/backends/eager/test_chunk_ops.py

# Tests start some hundred processes that import torch: what Python compiles of it is kept, in .venv,
# where the environment keeps none too.
COMPILED = PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(abspath $(VENV))/compiled

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input
# What is imported is compiled then: of transformers and sympy that is a small part.
INSTALL = $(PIP) install -qq --no-compile
INDEX = $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: demo test quick site lint clean
.DEFAULT_GOAL = demo

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py </dev/null

test: $(VENV)/.installed-tests
	@$(COMPILED) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS) </dev/null

quick: $(VENV)/.installed-tests
	@$(COMPILED) $(BIN)/python -m pytest -n $(JOBS) $(QUICK) $(PYTEST_ARGS) </dev/null

site: $(VENV)/.installed-tests
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "out/site/index.html written"

# `make test` runs both of these too (tests/test_house.py, test_types.py): ruff always, pyright where `archc` or
# `backends` are others than when it last found nothing.
lint: $(VENV)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) out build dist *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "archc needs Python >= 3.11: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(VENV)/bin/python
	@if $(PIP) show --quiet torch 2>/dev/null; then \
	    echo "torch is there"; \
	elif nvidia-smi >/dev/null 2>&1; then \
	    echo "NVIDIA driver found: installing torch $(TORCH)"; \
	    $(INSTALL) "torch==$(TORCH)"; \
	elif echo "no NVIDIA driver: installing the CPU build of torch $(TORCH)" \
	    && $(INSTALL) $(INDEX) "torch==$(TORCH)+cpu" 2>/dev/null; then \
	    :; \
	else \
	    echo "the package index names no CPU build (see TORCH_INDEX in the Makefile): taking its default one"; \
	    $(INSTALL) $(INDEX) "torch==$(TORCH)"; \
	fi
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-tests: $(VENV)/.installed
	$(PIP) show --quiet triton 2>/dev/null || $(INSTALL) "triton==$(TRITON)"
	$(INSTALL) --editable ".[test]"
	$(INSTALL) --no-deps $(NO_DEPS)
	@touch $@
