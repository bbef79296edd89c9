# The two commands of the README are `make run` and `make test`; both set up what they need.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CONFORMANCE := tests/mcp/conformance/node_modules/.package-lock.json
BROWSER := .venv/.browser
PROXY := .venv/.proxy
SERVERS := .venv/share/perdure/servers/node_modules/.package-lock.json

PYTEST := $(BIN)/pytest -q -n 6 --dist worksteal

unexport PYTHONDONTWRITEBYTECODE # else every process of the tests compiles everything again

.PHONY: run test suite test-all quick unit steady check parity sabotage crash elsewhere faults soak bench docs pictures format clean

run: $(READY)
	@$(BIN)/perdure serve

# The checks run beside the tests: pyright alone keeps only one core busy.
test: $(READY) $(CONFORMANCE) $(SERVERS) $(BROWSER) $(PROXY)
	@$(MAKE) --no-print-directory -j2 check suite

suite: $(READY) $(CONFORMANCE) $(SERVERS) $(BROWSER) $(PROXY)
	@$(PYTEST) --durations=10

# Every test on every engine, in every mode and with every kind of fault.
test-all: check $(CONFORMANCE) $(SERVERS) $(BROWSER) $(PROXY)
	@$(PYTEST) --durations=10 --engines=all
	@$(BIN)/python -m tools.parity --brief --all

# The checks, and every test that needs no server and no other process.
quick: $(READY)
	@$(MAKE) --no-print-directory -j2 check unit

unit: $(READY)
	@$(PYTEST) --quick

steady: $(READY) $(CONFORMANCE) $(SERVERS) $(BROWSER) $(PROXY)
	@$(BIN)/python -m tools.steady $(PYTEST)

check: $(READY)
	@$(BIN)/ruff format --check --quiet . || { echo "unformatted: run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/pyright --warnings
	@$(BIN)/lint-imports --no-cache > .venv/layers.log || { cat .venv/layers.log; exit 1; }
	@$(BIN)/python -m tools.parity --brief

parity: $(READY)
	@$(BIN)/python -m tools.parity

sabotage: $(READY) $(CONFORMANCE) $(SERVERS) $(BROWSER) $(PROXY)
	@$(BIN)/python -m tools.sabotage

crash: $(READY)
	@$(BIN)/python -m tests.runtime.crash --seconds 300 --kills 300

elsewhere: $(READY) $(SERVERS)
	@$(BIN)/python -m tests.cli.elsewhere --seconds 120

faults: $(READY) $(SERVERS)
	@$(BIN)/python -m tests.faults --seconds 120

soak: crash elsewhere faults
	@for engine in postgres redis dynamodb; do \
		echo "crashes on $$engine" && $(BIN)/python -m tests.runtime.crash --engine $$engine --seconds 300 --kills 300 || exit 1; \
	done

bench: $(READY) $(SERVERS)
	@$(BIN)/python -m benchmarks

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(READY) $(BROWSER)
	@$(BIN)/python -m tools.pictures
	@$(BIN)/python -m tools.crash_recording

format: $(READY)
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

clean:
	rm -rf .venv site tests/mcp/conformance/node_modules

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing what perdure needs into .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $@

$(CONFORMANCE): tests/mcp/conformance/package.json tests/mcp/conformance/package-lock.json | $(READY)
	@echo "installing the public conformance suites"
	@$(BIN)/python -m tests.mcp.conformance.install && touch $@

$(BROWSER): tests/web/browser.py | $(READY)
	@echo "looking for a browser"
	@$(BIN)/python -m tests.web.browser > $@ || { rm -f $@; exit 1; }

$(PROXY): tests/mcp/nginx.py | $(READY)
	@echo "looking for nginx"
	@$(BIN)/python -m tests.mcp.nginx > $@ || { rm -f $@; exit 1; }

$(SERVERS): src/perdure/storage/kit/servers/npm_packages.py | $(READY)
	@echo "installing the servers that speak DynamoDB"
	@$(BIN)/python -m perdure.storage.kit.servers.npm_packages && touch $@
