# Everything happens in .venv, made from any Python from 3.10 on; PYTHON=… chooses another one.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= hgx-h100

.PHONY: demo test test-slow test-vm lint bench screenshots clean

demo: $(VENV)/.installed
	$(BIN)/gdrtop --demo $(DEMO)

test: lint
	$(BIN)/python -m pytest -n logical

# What takes minutes.
test-slow: $(VENV)/.developing
	$(BIN)/python -m pytest -m slow -n logical

# The virtual GPU node: a real kernel in QEMU. Needs root once, to make its disk; see tests/node_vm/README.md.
test-vm: $(VENV)/.developing
	$(BIN)/python -m tests.node_vm.prerequisites
	$(BIN)/python -m pytest -m node_vm -n 2 --dist loadgroup --durations 12 tests/node_vm

lint: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.developing
	$(BIN)/python -m tests.perf

screenshots: $(VENV)/.developing
	$(BIN)/python -m tests.screenshots

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "gdrtop needs Python 3.10 or newer; choose one: make PYTHON=python3.11 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# Dependency groups need pip 25.1.
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis snapshot_report.html dist
