# Everything here sets itself up: `make demo` or `make test` on a fresh checkout is enough.
# PYTHON picks the interpreter of a new environment: PYTHON=python3.12 make demo

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Many processes import the same modules: Python is to keep what it compiles of them, when it first does
export PYTHONDONTWRITEBYTECODE :=

# One more than processors: some tests wait for what they start
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

comma := ,
GPU := $(shell nvidia-smi -L 2>/dev/null | grep '^GPU ')
EXTRAS ?= dev$(if $(GPU),$(comma)cuda)

# An interpreter that was asked for by name replaces an environment made with another one.
version = $(shell $(1) -c 'import sys; print(sys.version)' 2>/dev/null)
ifneq ($(origin PYTHON),file)
ANEW := $(if $(filter-out $(call version,$(PYTHON)),$(call version,$(BIN)/python)),anew)
endif

.PHONY: help setup build demo test check static compat wheel lint types collected current instructions bench docs docs-serve clean anew

help:
	@echo 'make demo    bias + ReLU from a few lines of YAML to a result'
	@echo 'make test    every check: lint, types, generated files, tests'
	@echo 'make check   what takes less than a minute of it: lint, types, generated files, and quick tests without JAX'
	@echo 'make compat  the tests with the newest libraries, in an environment of its own'
	@echo 'make wheel   a source distribution and a wheel, in dist'
	@echo 'make bench   on a GPU: every op against XLA'
	@echo 'make docs    the documents as a site, in build/site'
	@echo 'make clean   remove the environment and the caches'

setup: $(STAMP)

# uv takes a third of pip's time. Where it fails, as with an index of which only pip's settings know, pip installs
PIP := $(BIN)/python -m pip install --no-compile --disable-pip-version-check
install = { $(PIP) -qq uv && $(BIN)/uv pip install --quiet --python $(BIN)/python $(1); } 2>/dev/null || $(PIP) --quiet $(1)

$(STAMP): pyproject.toml $(ANEW)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed; name one: PYTHON=python3.12 make ...' >&2; exit 1; }
	@echo 'installing into $(VENV) (about a minute)'
	@test -e $@ -a -z '$(ANEW)' || $(PYTHON) -m venv --clear $(VENV)
	@$(call install,--editable '.[$(EXTRAS)]')
	@touch $@

# The path of the checkout may have spaces, which functions of make would split
in_examples = codegen="$$(realpath $(BIN)/codegen)" && cd examples && "$$codegen"

build: $(STAMP)
	@$(BIN)/codegen build
	@$(in_examples) build

demo: build
	@$(BIN)/python examples/demo.py

# pytest comes last: its summary is the last line.
test: STATIC += collected
test: static
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

# What needs neither JAX nor a compiled kernel, without the tests that are marked long
check: static
	$(BIN)/pytest tests/pure -m 'not long' -n $(WORKERS) --dist worksteal

# At once, for one of them takes as long as the others
STATIC = lint types current
static: $(STAMP)
	@$(MAKE) --no-print-directory --jobs --output-sync $(STATIC)

lint: $(STAMP)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet

types: $(STAMP)
	$(BIN)/mypy

# What tests import is compiled to bytecode before several processes import it at once. Errors are theirs to report.
collected: $(STAMP)
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true

# Whether the generated files are those of the specs
current: $(STAMP)
	$(BIN)/codegen check
	$(in_examples) check

# With the newest Python here, and the newest libraries that pyproject.toml allows: the tests that need no GPU.
NEWEST ?= $(shell for v in 3.13 3.12 3.11; do for p in python$$v $(HOME)/.pyenv/versions/$$v.*/bin/python; do \
	"$$p" -c '' 2>/dev/null && echo "$$p" && exit; done; done)
COMPAT := $(VENV)-newest

compat:
	@$(NEWEST) --version
	@test -x $(COMPAT)/bin/python || $(NEWEST) -m venv $(COMPAT)
	@$(COMPAT)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --upgrade --upgrade-strategy eager --editable '.[dev]'
	@$(COMPAT)/bin/python -m pip list --disable-pip-version-check | grep -iE '^(jax|jaxlib|numpy|nvidia-cutlass-dsl|hypothesis) '
	CODEGEN_UNTRIED=1 $(COMPAT)/bin/python -m pytest tests/pure tests/cpu -n $(WORKERS) --dist worksteal

wheel: $(STAMP)
	@rm -rf build/lib dist && mkdir dist  # setuptools would take what an earlier build left
	@$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist'); build_meta.build_wheel('dist')" >/dev/null
	@ls dist

# What test_library_compiles asks for where kernels have an instruction that tests/instructions.txt lacks; OPS names some of the ops.
instructions: $(STAMP)
	$(BIN)/python tests/instruction_list.py $(OPS)

bench: $(STAMP)
	$(BIN)/codegen bench

$(VENV)/.docs: $(STAMP)
	@$(call install,--editable '.[$(EXTRAS)$(comma)docs]')
	@touch $@

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo 'made build/site; its search needs a server: make docs-serve'

docs-serve: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

clean:
	rm -rf $(VENV) $(COMPAT) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .codegen-cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
