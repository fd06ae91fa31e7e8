# Two commands from nothing: `make demo` and `make test`. Both do `make setup` first, once.
PYTHON ?= python3
DEMO   ?= stream-reprocessor
BIN    := .venv/bin
READY  := .venv/.ready
CHROME := .venv/.browser
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check
# what each of two groups says, in one piece; an old make (macOS has one) mixes it
SYNC   := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
# the tests start Python a hundred times: it need not compile the same modules each time
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test lint unit crash page shots spark e2e commands walks matrix cuts kills parity compat bench lock fresh-clone clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY) $(CHROME) ## the virtual environment, Java, the jars and a browser; done once

$(READY): pyproject.toml requirements/dev.txt requirements/java.txt src/ebbtide/runtime/jars.lock
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 14) or sys.exit(f"Ebbtide needs Python 3.10 to 3.13, and $(PYTHON) is {sys.version.split()[0]}. Type: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@echo "Making the virtual environment .venv (once, a few minutes) …"
	@$(PYTHON) -m venv .venv
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'from ebbtide.runtime import java; java.find_java()' 2>/dev/null || \
		{ echo "No Java 17 or 21 here: bringing one …"; $(PIP) --require-hashes -r requirements/java.txt; }
	@$(BIN)/ebbtide doctor --fix
	@touch $(READY)

# a demo needs none; without one the tests of the page fail, and the one of the benchmarks
$(CHROME): | $(READY)
	@scripts/browser && touch $(CHROME) || true

demo: $(READY) ## plays the stream reprocessor; another one with DEMO=name
	@$(BIN)/ebbtide demo $(DEMO)

test: $(READY) $(CHROME) ## everything that CI runs, two groups at a time: each waits a good deal
	@echo "Two groups of tests at a time; each says what it has to say when it is done …"
	@$(MAKE) --no-print-directory --jobs 2 $(SYNC) spark commands walks page lint unit crash

lint: $(READY) ## ruff, mypy, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY) ## tests without a JVM, docstring examples included
	$(BIN)/pytest tests/unit --doctest-modules src --numprocesses auto

crash: $(READY) ## the power cut before every change of a rewind and an undo
	$(BIN)/pytest tests/crash --numprocesses auto

page: $(READY) $(CHROME) ## the page in a real browser, without a JVM
	$(BIN)/pytest tests/page

shots: $(READY) $(CHROME) ## the same and the walk of the page, which take the pictures of the documents anew
	EBBTIDE_SHOTS=1 $(BIN)/pytest tests/unit/history/test_plot.py tests/page tests/e2e/walks/test_page.py

spark: $(READY) ## tests with a Spark session, two of them at a time
	$(BIN)/pytest tests/spark --numprocesses 2 --dist loadfile

e2e: commands walks ## tests with the real broker and real processes

commands: $(READY) $(CHROME) ## of these: commands, crashes, bad input
	$(BIN)/pytest tests/e2e --ignore tests/e2e/walks

walks: $(READY) $(CHROME) ## of these: the five systems and the page, each played whole
	$(BIN)/pytest tests/e2e/walks

matrix: $(READY) ## wrong logic, rewind, right logic: every state store with every stateful operator
	EBBTIDE_MATRIX=all $(BIN)/pytest tests/spark/test_matrix.py

cuts: $(READY) ## Spark started on every tree that a power cut in a rewind or an undo can leave
	EBBTIDE_CUTS=all $(BIN)/pytest tests/spark/test_rewind_in_spark.py --timeout 3600

kills: $(READY) ## the archive killed twenty times at random under load: each record there once
	EBBTIDE_KILLS=20 $(BIN)/pytest tests/e2e/test_archive.py --timeout 3600

parity: $(READY) ## forty random streams, reprocessed: the same results, whatever came late
	EBBTIDE_PARITY=40 $(BIN)/pytest tests/spark/test_parity.py --timeout 3600

compat: $(READY) ## the same with checkpoints of Spark 3.5, 4.0, 4.1 and 4.2, each installed for it
	@scripts/compat

bench: $(READY) ## the benchmarks; ratios measured side by side
	$(BIN)/python -m benchmarks

lock: $(READY) ## pins every dependency anew: requirements/*.txt and jars.lock
	@for set in core: "spark:--extra spark" "java:--extra java" "ui:--extra ui" "plot:--extra plot" "dev:--extra spark --extra ui --extra dev"; do \
		$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-python-downloads --generate-hashes \
			--custom-compile-command "make lock" $${set#*:} pyproject.toml --output-file requirements/$${set%%:*}.txt || exit 1; \
	done
	@$(BIN)/python -m ebbtide.runtime.java

fresh-clone: ## clones into an empty folder, empty caches, no Java on the PATH: demo and test
	@bash scripts/fresh-clone

clean: ## removes what make and the demos made here
	rm -rf .venv .ebbtide .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
