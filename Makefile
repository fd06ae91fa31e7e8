# `make demo` and `make test` work from a fresh clone: each first installs what it needs, once.
PYTHON ?= python3
DEMO   ?= stream-reprocessor
BIN    := .venv/bin
READY  := .venv/.ready
LIGHT_READY := .venv/.demo
CHROME := .venv/.browser
DOCS   := .venv/.docs
RELEASE := .venv/.release
FUZZ   := .venv/.fuzz
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check
# what the images of deploy/Dockerfile have beside the core, resolved together
LIGHT  := --extra ui --extra s3 --extra gcs --extra azure --extra hdfs --extra tls
# print the output of parallel groups one after the other; an old make (as on macOS) mixes it
SYNC   := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
# the tests start Python a hundred times, so let it cache compiled modules
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check lint unit crash page shots spark e2e commands walks walk cluster cluster-test matrix cuts kills store-cuts stores servers parity records fuzz compat versions deploys storms hosts simulate bench bench-quick docs dist release package lock fresh-clone clean

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY) $(CHROME) ## install the virtual environment, Java, the jars and a browser (once)

NEEDS  := pyproject.toml requirements/setup.txt requirements/java.txt src/ebbtide/runtime/jars.lock scripts/install.py
INSTALL = @command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON). Install Python 3.10 to 3.13, or type: make PYTHON=/path/to/python $@" >&2; exit 1; }; \
	$(PYTHON) scripts/install.py

$(READY): $(NEEDS) requirements/dev.txt
	$(INSTALL) dev
	@$(BIN)/ebbtide doctor --fix
	@touch $(LIGHT_READY) $(READY)

# what a demo needs, or the developers' environment, which has all of it
$(LIGHT_READY): $(NEEDS) requirements/spark.txt
	$(INSTALL) demo
	@touch $(LIGHT_READY)

# demos need no browser; without one, the tests of the web UI and of the benchmarks fail
$(CHROME): | $(READY)
	@scripts/browser && touch $(CHROME) || true

# only who builds or tests the site needs these
$(DOCS): requirements/docs.txt | $(READY)
	@$(PIP) --require-hashes -r requirements/docs.txt
	@touch $(DOCS)

# only who builds or tests the package needs these
$(RELEASE): requirements/release.txt | $(READY)
	@$(PIP) --require-hashes -r requirements/release.txt
	@touch $(RELEASE)

# only who fuzzes needs these
$(FUZZ): requirements/fuzz.txt | $(READY)
	@$(PIP) --require-hashes -r requirements/fuzz.txt
	@touch $(FUZZ)

demo: $(LIGHT_READY) ## play the stream reprocessor, or another demo with DEMO=name
	@$(BIN)/ebbtide demo $(DEMO)
	@$(BIN)/ebbtide doctor --fix >/dev/null

test: $(READY) $(CHROME) $(DOCS) $(RELEASE) ## run everything that CI runs, two groups at a time, because each waits a lot
	@echo "Running two groups of tests at a time; each prints its output when it is done …"
	@$(MAKE) --no-print-directory --keep-going --jobs 2 $(SYNC) commands spark walks cluster page unit crash lint

check: $(READY) $(DOCS) ## the inner loop: ruff, mypy, and the unit tests of what changed
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/python -m scripts.changed | xargs $(BIN)/pytest --quiet --doctest-modules --numprocesses 2

lint: $(READY) $(DOCS) ## run ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY) $(DOCS) ## run the tests without a JVM, and the docstring examples
	$(BIN)/pytest tests/unit --doctest-modules src scripts --numprocesses 4

crash: $(READY) ## simulate a power cut before every change of a rewind and an undo
	$(BIN)/pytest tests/crash --numprocesses auto

page: $(READY) $(CHROME) ## test the web UI in a real browser, without a JVM
	$(BIN)/pytest tests/page

shots: $(READY) $(CHROME) ## take the pictures in the documentation again, with the tests of the web UI
	EBBTIDE_SHOTS=1 $(BIN)/pytest tests/unit/history/test_plot.py tests/page
	EBBTIDE_SHOTS=1 $(BIN)/pytest tests/e2e/walks/test_page.py

spark: $(READY) ## run the tests with a Spark session, two sessions at a time
	$(BIN)/pytest tests/spark --numprocesses 2 --dist loadfile

e2e: commands walks ## run the tests with the real broker and real processes

# not by a prerequisite, after which make would begin the longest group last
commands: $(READY) $(CHROME) $(RELEASE) ## end-to-end tests of commands, crashes and bad input
	@$(BIN)/python -m tests.servers
	$(BIN)/pytest tests/e2e --ignore tests/e2e/walks

walks: $(READY) $(CHROME) ## end-to-end tests of the five systems and the web UI
	$(BIN)/pytest tests/e2e/walks

cluster: $(READY) ## one system on a Spark cluster, with a secured Kafka and S3
	$(BIN)/pytest tests/cluster --timeout 1200

cluster-test: $(READY) ## all five systems there, by --master and spark-submit; a worker and a broker are killed
	EBBTIDE_CLUSTER=all $(BIN)/pytest tests/cluster --timeout 1800

matrix: $(READY) ## rewind and correct every state store with every stateful operator
	EBBTIDE_MATRIX=all $(BIN)/pytest tests/spark/test_matrix.py

walk: $(READY) ## walk at random over 200 real checkpoints; each must be as a model says (WALKS=n SEED=n)
	EBBTIDE_WALKS=$${WALKS:-200} EBBTIDE_WALK_SEED=$${SEED:-0} EBBTIDE_WALK_PLANT=$${PLANT:-} $(BIN)/pytest tests/spark/test_walk.py --capture no --timeout 7200

cuts: $(READY) ## start Spark on every tree that a power cut in a rewind or an undo can leave
	EBBTIDE_CUTS=all $(BIN)/pytest tests/spark/test_rewind_in_spark.py --timeout 3600

kills: $(READY) ## kill the archive twenty times under load; each record must be there once
	EBBTIDE_KILLS=20 $(BIN)/pytest tests/e2e/test_archive.py --timeout 3600

store-cuts: $(READY) servers ## cut the power before every change of a rewind and an undo on S3 and HDFS
	$(BIN)/python -m tests.store_cuts s3 hdfs

stores: $(READY) servers ## play every checkpoint in tests/fixtures on S3, Azure, GCS and HDFS
	EBBTIDE_STORES=all $(BIN)/pytest tests/e2e/test_stores.py --timeout 3600

servers: $(READY) ## install the servers of stores for the tests (once; 250 MB to download)
	@$(BIN)/python -m tests.servers

storms: $(READY) ## change one checkpoint with eight processes at once, and stop or kill some, 180 times
	EBBTIDE_STORMS=60 $(BIN)/pytest tests/crash/test_storms.py --timeout 7200

hosts: $(READY) servers ## race two hosts for one checkpoint on a disk, S3, GCS, Azure and HDFS, 200 times each
	EBBTIDE_HOSTS=$${EBBTIDE_HOSTS:-200} $(BIN)/pytest tests/crash/test_hosts.py --timeout 14400

simulate: $(READY) ## play 200,000 runs on simulated stores, with faults, on all cores
	$(BIN)/python -m tests.simulation $${EBBTIDE_RUNS:-200000}

parity: $(READY) ## reprocess forty random streams; the results must be the same, whatever came late
	EBBTIDE_PARITY=40 $(BIN)/pytest tests/spark/test_parity.py --timeout 3600

records: $(READY) ## decode 600,000 usual, odd and damaged records both ways, in two time zones
	EBBTIDE_RECORDS=600000 $(BIN)/pytest tests/spark/test_json_records.py -k is_what_spark_decodes --timeout 7200

fuzz: $(FUZZ) ## give a million hostile inputs to all parsers and forms, then every command 3,000 checkpoints
	$(BIN)/python -m tests.fuzz --cases $${CASES:-1000000} --seed $${SEED:-0} $${PLANT:+--plant $$PLANT}
	[ -n "$$PLANT" ] || EBBTIDE_FUZZ=3000 $(BIN)/pytest tests/unit/rewind/test_hostile.py --timeout 14400

compat: $(READY) ## test checkpoints of Spark 3.5 to 4.3, each version in its own environment
	@scripts/compat

deploys: $(READY) ## start new code on checkpoints of old code, 150 pairs, with Spark 3.5, 4.1 and 4.2
	@$(BIN)/python -m tests.deploys

versions: $(READY) ## play the five systems with Spark 3.5 to 4.2, each version in its own environment
	@scripts/versions

bench: $(READY) ## compare with other systems side by side (an hour), and write docs/performance.md
	$(BIN)/python -m benchmarks works report --json docs/performance.json

bench-quick: $(READY) ## the same in five minutes, to see that it works; writes no document
	@mkdir -p build
	$(BIN)/python -m benchmarks peers --quick --json build/bench-quick.json

docs: $(DOCS) ## build the documentation site into build/site; a warning fails it
	$(BIN)/mkdocs build --strict

dist: $(RELEASE) ## build the wheel and the sdist into dist, and check both
	$(BIN)/python -m scripts.release build

release: $(RELEASE) ## a dry run of a release: package, notes, bill of materials, audit; then what to type
	$(BIN)/python -m scripts.release

package: $(RELEASE) ## install the wheel beside pyspark 3.5.9 and without Spark, and use it
	EBBTIDE_PACKAGE=all $(BIN)/pytest tests/e2e/test_package.py --timeout 1800

lock: $(READY) ## pin every dependency: requirements/*.txt and jars.lock
	@for set in "dev:--extra spark --extra ui --extra dev" core: "spark:--extra spark" "java:--extra java" "ui:--extra ui" "plot:--extra plot" "s3:--extra s3" "gcs:--extra gcs" "azure:--extra azure" "hdfs:--extra hdfs" "tls:--extra tls" "image-light:$(LIGHT)" "image-spark:--extra spark $(LIGHT)" "docs:--extra docs" "release:--extra release" "fuzz:--extra fuzz"; do \
		$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-python-downloads --generate-hashes \
			$$([ $${set%%:*} = dev ] || echo --constraint requirements/dev.txt) \
			--custom-compile-command "make lock" $${set#*:} pyproject.toml --output-file requirements/$${set%%:*}.txt || exit 1; \
	done
	@for set in build: setup:uv; do \
		{ sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml; echo $${set#*:}; } | \
			$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-python-downloads --generate-hashes \
				--custom-compile-command "make lock" - --output-file requirements/$${set%%:*}.txt || exit 1; \
	done
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-python-downloads --generate-hashes \
		--custom-compile-command "make lock" --group tools --output-file requirements/tools.txt
	@for peer in bytewax delta-rs flink loop; do \
		$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-python-downloads --generate-hashes \
			$$([ $$peer != flink ] || echo --no-deps) \
			--custom-compile-command "make lock" benchmarks/peers/$$peer.in --output-file benchmarks/peers/$$peer.txt || exit 1; \
	done
	@$(BIN)/python -m ebbtide.runtime.java
	@$(BIN)/python -m benchmarks.environments

fresh-clone: ## run demo and test in a fresh clone, with empty caches and no Java on the PATH
	@$(PYTHON) -m scripts.fresh_clone

clean: ## remove what make and the demos created here
	rm -rf .venv .ebbtide build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
