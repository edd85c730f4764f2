# Everything a clone needs. `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOINS  := q3,q4,q5,q7,q8,q9,q13,q20
# pip and Spark follow the ordinary clients' configuration; nothing here says where packages come from.

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-faults lint bench-log bench-idle bench-flow bench-history bench-stage bench-time bench-joins bench-logic bench-stores bench-delivery bench-capture bench-recovery bench-queue bench-commits bench-report sql-page capture-page rooms-page start-page life-pages soak soak-log clean

help:  ## list the targets
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  ##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(VENV)/.setup  ## virtual environment, dependencies, Java and connector jars; skips what is done

demo: $(VENV)/.setup  ## the web shop with live pages; SECONDS=60 ends by itself and checks every number
	@$(BIN)/headwater demo $(if $(SECONDS),--seconds $(SECONDS)) $(if $(PORT),--port $(PORT)) $(ARGS)

test: $(VENV)/.setup $(VENV)/.setup-test lint  ## linters, types and all tests; ARGS="-k name" selects
	@scripts/test $(BIN)/pytest $(ARGS)

lint: $(VENV)/.setup  ## ruff and mypy
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

test-faults: $(VENV)/.setup $(VENV)/.setup-test  ## the long runs, more than a day of them: lives in virtual time, kills, power cuts, histories, queries, values; KIND=stage SEEDS=0-9 for a slice
	@$(BIN)/python tests/crash/faults.py $(if $(KIND),--kind $(KIND)) $(if $(SEEDS),--seeds $(SEEDS))

bench-log: $(VENV)/.setup $(VENV)/.setup-test  ## the embedded log against Apache Kafka
	@$(BIN)/python bench/log.py $(ARGS)
	@$(BIN)/python bench/report.py

bench-idle: $(VENV)/.setup $(VENV)/.setup-test  ## what twenty views cost while nothing happens
	@$(BIN)/python bench/idle.py $(ARGS)
	@$(BIN)/python bench/report.py

bench-flow: $(VENV)/.setup $(VENV)/.setup-test  ## idle connections, and the longest stall of the broker's event loop
	@$(BIN)/python bench/flow.py $(ARGS)
	@$(BIN)/python bench/report.py

bench-history: $(VENV)/.setup $(VENV)/.setup-test  ## a partition of 100,000 segments beside one of 1,000
	@$(BIN)/python bench/history.py $(ARGS)
	@$(BIN)/python bench/report.py

bench-stage: $(VENV)/.setup $(VENV)/.setup-test  ## what publishing each batch once costs, beside Spark's own sink and state
	@$(BIN)/python bench/stage.py $(ARGS)
	@$(BIN)/python bench/report.py

bench-time: $(VENV)/.setup $(VENV)/.setup-test .venv-flink/.setup  ## real-time latency, ten times the history, and Nexmark beside Flink SQL (about two hours; QUERIES=q0,q17 for some)
	@$(BIN)/python bench/timing.py $(ARGS)
	@$(BIN)/python bench/nexmark.py
	@$(BIN)/python bench/nexmark_latency.py
	@$(BIN)/python bench/report.py

bench-joins: $(VENV)/.setup $(VENV)/.setup-test .venv-flink/.setup  ## joins beside Flink SQL and transformWithState, and Nexmark's joins (about an hour; QUERIES=q3,q8 for some)
	@EVENTS=$(or $(EVENTS),2000000) $(BIN)/python bench/joins.py
	@EVENTS=$(or $(EVENTS),2000000) QUERIES=$(or $(QUERIES),$(JOINS)) $(BIN)/python bench/nexmark.py
	@$(BIN)/python bench/report.py

bench-logic: $(VENV)/.setup  ## CPU of the operators of joins without Spark; EVENTS=400000, PROFILE=1 shows where it goes
	@$(BIN)/python bench/logic.py $(ARGS)

bench-capture: $(VENV)/.setup $(VENV)/.setup-test .cache/debezium/.setup  ## what capturing PostgreSQL and MariaDB costs beside Debezium, streaming and snapshot (about 15 minutes); ROWS=1000000
	@$(BIN)/python bench/capture.py --rows $(or $(ROWS),1000000) $(ARGS)
	@$(BIN)/python bench/report.py

bench-recovery: $(VENV)/.setup $(VENV)/.setup-test  ## how long a view is away: back from its checkpoint, from where it was saved, from the log; KEYS=, RECORDS=
	@KEYS=$(or $(KEYS),200000) RECORDS=$(or $(RECORDS),2000000) $(BIN)/python bench/recovery.py
	@$(BIN)/python bench/report.py

bench-commits: $(VENV)/.setup $(VENV)/.setup-test  ## CPU-seconds beside an earlier commit, five pairs in turns (about 20 minutes); BASE=8d0287d, PROBES=log,stage,capture
	@BASE=$(or $(BASE),HEAD~1) PROBES=$(PROBES) $(BIN)/python bench/commits.py
	@$(BIN)/python bench/report.py

bench-stores: $(VENV)/.setup  ## LMDB, SQLite and a dict as keyed state, with workers that change shards
	@$(BIN)/python bench/stores.py

bench-delivery: $(VENV)/.setup $(VENV)/.setup-test  ## rows a second from a topic into each store, against the plain way to load it; ROWS=1000000, STORES=postgres,redis for some
	@ROWS=$(or $(ROWS),1000000) $(BIN)/python bench/delivery.py $(ARGS)
	@$(BIN)/python bench/report.py

soak: $(VENV)/.setup $(VENV)/.setup-test  ## a day of the shop in an hour, with restarts, pauses and a rebuild: totals equal the generator's, memory, files and starts stay flat; MINUTES=6 for a trial
	@$(BIN)/python bench/day/run.py --minutes $(or $(MINUTES),60) $(ARGS)
	@$(BIN)/python bench/report.py

soak-log: $(VENV)/.setup $(VENV)/.setup-test  ## the broker alone, 40 minutes under load: memory, files and threads stay flat; FULL_MINUTES=, THIRD_MINUTES=
	@FULL_MINUTES=$(or $(FULL_MINUTES),10) THIRD_MINUTES=$(or $(THIRD_MINUTES),30) $(BIN)/python bench/soak.py $(ARGS)
	@$(BIN)/python bench/report.py

sql-page: $(VENV)/.setup  ## writes the list of what is refused in docs/sql.md from the code that refuses
	@PYTHONPATH=tests $(BIN)/python tests/pipeline/sqlpage.py

capture-page: $(VENV)/.setup  ## writes the states of captures in docs/capture.md from the tables by which they run
	@PYTHONPATH=tests $(BIN)/python tests/capture/lifepage.py

rooms-page: $(VENV)/.setup  ## draws the table of rooms in ARCHITECTURE.md from tests/rooms.py
	@$(BIN)/python tests/rooms.py

start-page: $(VENV)/.setup  ## draws the tables of how a view starts in pipeline/DESIGN.md from the code
	@PYTHONPATH=tests $(BIN)/python tests/pipeline/startpage.py

life-pages: $(VENV)/.setup  ## draws the lives of sinks and effects in docs/sinks.md and docs/effects.md from the code
	@PYTHONPATH=tests $(BIN)/python tests/sink/lifepage.py

bench-queue: $(VENV)/.setup $(VENV)/.setup-test .venv-rabbit/.setup  ## queues beside RabbitMQ and Apache Kafka's share groups (about 20 minutes); MESSAGES=8000 ROUNDS=1 for a trial
	@$(BIN)/python bench/queues.py $(ARGS)
	@$(BIN)/python bench/report.py

bench-report: $(VENV)/.setup  ## draws docs/benchmarks.md from bench/results
	@$(BIN)/python bench/report.py

clean:  ## remove the virtual environment and everything that was built or measured locally
	rm -rf $(VENV) .venv-flink .venv-rabbit build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log

$(VENV)/.setup: pyproject.toml scripts/setup src/headwater/pipeline/spark/jars.py src/headwater/operate/machine/keep_classes.py $(wildcard src/headwater/pipeline/spark/jvm/*.java)
	@PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup
	@touch $@

.cache/debezium/.setup: scripts/setup-debezium bench/debezium/pom.xml bench/debezium/Capture.java
	@scripts/setup-debezium

.venv-rabbit/.setup: scripts/setup-queue $(wildcard bench/queue_java/*)
	@PYTHON=$(PYTHON) scripts/setup-queue

.venv-flink/.setup: scripts/setup-flink
	@PYTHON=$(PYTHON) scripts/setup-flink

$(VENV)/.setup-test: scripts/setup-test | $(VENV)/.setup
	@scripts/setup-test
	@touch $@
