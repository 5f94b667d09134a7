# make demo   run the shipped example on the embedded simulator: no key, no cost
# make test   what every change has to pass: lint, types, import rules, tests
# make test-processes  the tests that start, signal and kill processes of agac for long: CI runs them after `make test`
# make test-services   the tests that start a server, a browser, a cluster or the like: CI runs them after the others
# make lowest the tests with the lowest versions of packages that pyproject.toml allows
# make package   the wheel and the source archive into dist/, each installed and tried
# make soak   the tests with all that they can look for: every kill, every combination, many random workflows
# All make a virtual environment in .venv the first time, and are quick after that.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# One more than there are cores: some tests wait for the processes that they start.
PARALLEL ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
# The tests start hundreds of processes: without bytecode each would compile all of agac again, twice the time of the rest.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-processes test-services lint types imports unit pyright actions lowest package soak coverage test-all bench docs clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# pip installs what users install; uv the many packages of the tests, in a sixth of the time. It does not read pip's
# configuration: where it finds nothing for that, pip does it.
# `--no-compile`: Python compiles what is imported when it is, a small part of all that is installed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "agac needs Python 3.11 or newer with ensurepip (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "Installing agac into $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-compile -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV) ..."
	@$(PIP) install --no-compile -c constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]' \
	  || $(PIP) install --no-compile -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## Run the example workflow on the embedded simulator
	@echo "Running the workflow product_reviews (workflows/product_reviews.yml) on the embedded simulator ..."
	@$(BIN)/agac run -a product_reviews
	@echo
	@echo "One line a row, in input order: output/product_reviews/results.jsonl"
	@echo "Run it again and nothing is asked twice: $(BIN)/agac run -a product_reviews"

# Types are checked beside the tests. What `types` prints is kept together; `+` lets the tests' dots come as they are.
test: lint imports ## What every change has to pass
	@$(MAKE) --no-print-directory -j2 --output-sync=target types unit

lint: $(VENV)/.installed-dev ## Style
	@echo "ruff ..."
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .

types: $(VENV)/.installed-dev ## Types, strictly
	@echo "mypy ..."
	@$(BIN)/mypy

imports: $(VENV)/.installed-dev ## Imports go down
	@echo "import-linter ..."
	@$(BIN)/lint-imports --no-cache > .import-lint.log 2>&1 || { cat .import-lint.log; exit 1; }
	@rm -f .import-lint.log

unit: $(VENV)/.installed-dev ## Tests
	+@echo "pytest ..."
	+@$(BIN)/pytest -n $(PARALLEL) --dist worksteal -m "not services and not processes"

test-processes: $(VENV)/.installed-dev ## Tests that start, signal and kill processes of agac for long
	@echo "pytest, processes ..."
	@$(BIN)/pytest -n $(PARALLEL) --dist worksteal -m "processes and not services"

test-services: $(VENV)/.installed-dev ## Tests that start servers, browsers, clusters and programs of npm
	@echo "pytest, services ..."
	@$(BIN)/pytest -n $(PARALLEL) --dist worksteal -m services

actions: $(VENV)/.installed-dev ## The definitions of CI, checked by an action linter
	@$(BIN)/zizmor --offline --quiet .github action.yml

pyright: $(VENV)/.installed-dev ## Types as editors see them: a program that uses agac, checked by basedpyright
	@test -x $(BIN)/basedpyright || $(PIP) install --no-compile -c constraints.txt basedpyright
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pytest tests/behaviour/test_python_api.py -k a_program_is_typed

# The packages that agac itself needs in their lowest versions, the tests' own tools and servers in the usual ones.
LOWEST := .venv-lowest
TESTED := behaviour contract data golden policy providers simulator spec store tools

lowest: ## The tests with the lowest versions that pyproject.toml allows
	@test -x $(LOWEST)/bin/uv || { $(PYTHON) -m venv $(LOWEST) && $(LOWEST)/bin/python -m pip install --quiet -c constraints.txt uv; }
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[anthropic,data,hf,json-repair,mcp,notify,otel,postgres,ray,remote,ui,uvloop,xlsx]'
	@grep -E '^(hypothesis|mcp-server|pandas|polars|pyarrow|pytest)' constraints.txt > $(LOWEST)/tools.txt
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python -r $(LOWEST)/tools.txt
	@$(LOWEST)/bin/pytest -n $(PARALLEL) --dist worksteal $(TESTED:%=tests/%)

package: ## The wheel and the source archive into dist/, each installed and tried
	@rm -rf dist .venv-package && $(PYTHON) -m venv .venv-package
	@.venv-package/bin/python -m pip install --quiet -c constraints.txt build
	@.venv-package/bin/python -m build --outdir dist . > dist.log 2>&1 || { cat dist.log; exit 1; }
	@rm -f dist.log
	@.venv-package/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	@for file in dist/*.whl dist/*.tar.gz; do \
	  .venv-package/bin/python -m pip install --quiet --force-reinstall --no-deps $$file || exit 1; \
	  (cd dist && rm -rf shop && ../.venv-package/bin/agac init shop > /dev/null && cd shop \
	    && ../../.venv-package/bin/agac run reviews && ../../.venv-package/bin/agac doctor --install > /dev/null \
	    && bare=$$(mktemp -d) && cp data/reviews.csv $$bare && cd $$bare \
	    && $(CURDIR)/.venv-package/bin/agac process reviews.csv out.jsonl --model simulator/small --no-final-summary \
	    && $(CURDIR)/.venv-package/bin/agac status && rm -r $$bare) || exit 1; \
	done; rm -rf dist/shop; ls -l dist

soak: $(VENV)/.installed-dev ## Tests that look for long: all cells of all campaigns, other random examples each time
	@AGAC_SOAK=1 $(BIN)/pytest -n $(PARALLEL) --dist worksteal --timeout 21600

coverage: $(VENV)/.installed-dev ## Line coverage of agac/, subprocesses and killed ones included
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run -m pytest -n $(PARALLEL) --dist worksteal -m "not unmeasured"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --fail-under=90

test-all: ## The tests on every Python from 3.11 to 3.13 that is here
	@for v in 3.11 3.12 3.13; do \
	  p=$$(ls $$(pyenv root 2>/dev/null)/versions/$$v.*/bin/python 2>/dev/null | tail -1); p=$${p:-$$(command -v python$$v)}; \
	  if [ -n "$$p" ]; then echo "== Python $$v"; $(MAKE) --no-print-directory test VENV=.venv-$$v PYTHON=$$p || exit 1; \
	  else echo "== Python $$v is not here"; fi; \
	done

bench: $(VENV)/.installed-dev ## Measure against a raw client; docs/benchmarks.md says how to read it
	@$(BIN)/python bench/run.py

docs: $(VENV)/.installed-dev ## Build the documentation into site/, every link checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "Open site/index.html, or with search: $(BIN)/python -m http.server --directory site"

clean: ## Remove what was installed and cached; your state in .agac and output stays
	@rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
