# Everything happens in .venv, made from any Python from 3.10 on; PYTHON=… chooses another one.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= hgx-h100+no-gdr-path
# Some tests wait for programs that they start: one worker more than cores.
WORKERS ?= $(shell expr $$(nproc) + 1)
RELEASE = $(shell sed -n 's/^RELEASE = "\(.*\)"/\1/p' tui/files/version.py)
# The container image: a name without a tag, below which registry it is pushed, and what builds it.
IMAGE ?= gdrtop
PODMAN ?= podman
MACHINE = $(shell uname -m)

.PHONY: help demo test test-slow test-every-case test-all test-vm lint bench reports screenshots man site dist clean \
	image push-image push-image-index check-release publish draft-release

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  make %-16s %s\n", $$1, $$2 }'

demo: $(VENV)/.installed ## the dashboard on a simulated node with a fault; DEMO=gb200 chooses another one
	$(BIN)/gdrtop --demo $(DEMO)

test: lint ## ruff, mypy, codespell and the fast tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-slow: $(VENV)/.developing $(VENV)/.packaging $(VENV)/.deployment $(VENV)/.charts ## the slow tests only
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist worksteal

test-every-case: $(VENV)/.developing ## the slow tests that try a share of the faults and nodes, with all; two hours
	EVERY_CASE=1 $(BIN)/python -m pytest -m slow -n $(WORKERS) --dist worksteal $$(grep -rlE 'nodes_to_try|import share' tests --include='test_*.py')

test-all: test test-slow ## the fast and the slow tests

test-vm: $(VENV)/.developing ## a virtual GPU node with a real kernel; needs root once, see tests/node_vm/README.md
	$(BIN)/python -m tests.node_vm.prerequisites
	$(BIN)/python -m pytest -m node_vm -n 2 --dist loadgroup --durations 12 tests/node_vm

lint: $(VENV)/.developing ## ruff, mypy and codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --diff .
	$(BIN)/mypy
	$(BIN)/codespell

bench: $(VENV)/.developing ## the time and memory budgets, against peers in the same run; JSON=file keeps them
	$(BIN)/python -m tests.perf $(if $(JSON),--json $(JSON))

reports: $(VENV)/.developing ## how many public reports gdrtop read answers rightly
	$(BIN)/python -m tests.reports

screenshots: $(VENV)/.developing ## the pictures and the recording in screenshots/
	$(BIN)/python -m tests.screenshots

man: $(VENV)/.developing ## the output on the pages of the manual; the man page and the completions in build/share
	$(BIN)/python -m tests.machines
	$(BIN)/python -m tests.manual_output
	$(BIN)/python -m tests.generated_files build/share

site: $(VENV)/.developing $(VENV)/.publishing ## the documentation, in build/site: the manual and a page for each finding and message
	$(BIN)/python -m tests.site build/site

dist: $(VENV)/.developing $(VENV)/.packaging site ## all packages, in dist/; CONSTRAINTS=file fixes the dependencies
	$(BIN)/python -m tests.packages dist $(if $(CONSTRAINTS),--constraints $(CONSTRAINTS))

image: ## the container image of the wheel in dist/
	$(PODMAN) build --pull --tag $(IMAGE):$(RELEASE)-$(MACHINE) --file tui/deploy/Containerfile \
		--build-arg VERSION=$(RELEASE) --build-arg REVISION=$$(git rev-parse HEAD) .

check-release: ## whether dist/ holds the release, unchanged; the targets below are for release.yml
	cd dist && sha256sum --check --quiet SHA256SUMS && ls gdrtop-$(RELEASE).tar.gz gdrtop-$(RELEASE)-py3-none-any.whl
	@[ -z "$$GITHUB_OUTPUT" ] || echo "version=$(RELEASE)" >> "$$GITHUB_OUTPUT"

publish: $(VENV)/.packaging check-release ## send the wheel and the source distribution to the package index
	$(VENV)/packaging/bin/uv publish --trusted-publishing always dist/gdrtop-$(RELEASE).tar.gz* dist/gdrtop-$(RELEASE)-*.whl*

# The file in which the action that attests the image looks for the password.
push-image push-image-index: export REGISTRY_AUTH_FILE = $(HOME)/.docker/config.json

push-image: ## send the image to its registry
	@$(SIGN_IN)
	$(PODMAN) push --digestfile build/digest $(IMAGE):$(RELEASE)-$(MACHINE)
	@$(TELL_DIGEST)

push-image-index: ## send what chooses between the images of both architectures
	@$(SIGN_IN)
	$(PODMAN) manifest create gdrtop-index $(foreach machine,x86_64 aarch64,docker://$(IMAGE):$(RELEASE)-$(machine))
	$(PODMAN) manifest push --digestfile build/digest gdrtop-index docker://$(IMAGE):$(RELEASE)
	@$(TELL_DIGEST)

SIGN_IN = mkdir -p build; printf %s "$$REGISTRY_TOKEN" | $(PODMAN) login --username "$$REGISTRY_USER" --password-stdin $(firstword $(subst /, ,$(IMAGE)))
TELL_DIGEST = [ -z "$$GITHUB_OUTPUT" ] || echo "digest=$$(cat build/digest)" >> "$$GITHUB_OUTPUT"

draft-release: ## a draft of the release with all files, which a person publishes
	@mkdir -p build
	sed -n '/^## $(RELEASE) /,/^## /{/^## /!p}' CHANGELOG.md > build/notes.md
	gh release create v$(RELEASE) --draft --verify-tag --title "gdrtop $(RELEASE)" --notes-file build/notes.md dist/*

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "gdrtop needs Python 3.10 or newer; choose one: make PYTHON=python3.11 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# Dependency groups need pip 25.1.
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml tui/launch.py
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(VENV)/.packaging: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)/packaging
	$(BIN)/python -m pip --python $(VENV)/packaging/bin/python install --quiet --group packaging
	@touch $@

# What checks the workflows and the Ansible role, and runs the role.
$(VENV)/.deployment: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)/deployment
	$(BIN)/python -m pip --python $(VENV)/deployment/bin/python install --quiet --group deployment
	@touch $@

$(VENV)/.charts: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/charts --group charts
	@touch $@

$(VENV)/.publishing: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)/site
	$(BIN)/python -m pip --python $(VENV)/site/bin/python install --quiet --group site
	@touch $@

clean: ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis snapshot_report.html dist build/site
