# Two commands for a newcomer: `make demo` and `make test`. Each makes .venv and installs what it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= auto

.PHONY: demo test check unit clients mininet postgresql spin sim native p4 p4-tofino2 p4-generated vectors \
    bench bench-controller faults clean help

help: ## Show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed-demo ## Two-flow experiment on the software switch; results in out/demo
	$(BIN)/ringstep demo --out out/demo

test: check unit ## Lint, types and every test; says what was skipped and how to enable it

check: $(VENV)/.installed-sim
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python p4src/compile.py --check

unit: $(VENV)/.installed-sim clients mininet postgresql spin
	$(BIN)/pytest -n $(JOBS) --dist worksteal

# Clients that others wrote drive the software switch. Each pins what this project cannot share.
CLIENTS := p4runtime-shell p4net

clients: $(CLIENTS:%=$(VENV)-%/.installed) ## Environments of the foreign P4Runtime clients

$(VENV)-%/.installed: tests/softswitch/clients/%.txt | $(VENV)/bin/python
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check \
	    --requirement $<
	@touch $@

# Tests of the lab and of the store skip without these, so whatever goes wrong here is no failure.
APT_INSTALL := DEBIAN_FRONTEND=noninteractive timeout 180 apt-get -qq -y -o DPkg::Lock::Timeout=20 \
    -o Acquire::Retries=1 -o Acquire::http::Timeout=15 install --no-install-recommends
mininet: ## Install Debian's Mininet where root and apt are there; `ringstep lab` needs it
	@command -v mnexec >/dev/null 2>&1 || test "$$(id -u)" != 0 || \
	    ! command -v apt-get >/dev/null 2>&1 || \
	    { $(APT_INSTALL) mininet || { timeout 120 apt-get -qq update && $(APT_INSTALL) mininet; }; } \
	    >/dev/null 2>&1 </dev/null || true

# The tests start servers of their own. Debian's package would make a cluster and start it, unless this
# file says otherwise; where there is one already, it is the administrator's and stays as it is.
CLUSTER_CONF := /etc/postgresql-common/createcluster.conf
postgresql: ## Install Debian's PostgreSQL where root and apt are there; tests of its store need it
	@command -v postgres >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || \
	    test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null 2>&1 || \
	    { test -e $(CLUSTER_CONF) || { mkdir -p $(dir $(CLUSTER_CONF)) && \
	        printf '# By `make postgresql` of Ringstep: no server of the package itself.\ncreate_main_cluster = false\n' \
	            > $(CLUSTER_CONF); }; \
	      $(APT_INSTALL) postgresql || \
	      { timeout 120 apt-get -qq update && $(APT_INSTALL) postgresql; }; } \
	    >/dev/null 2>&1 </dev/null || true

spin: ## Install Debian's spin where root and apt are there; the model of the agreement needs it
	@command -v spin >/dev/null 2>&1 || test "$$(id -u)" != 0 || \
	    ! command -v apt-get >/dev/null 2>&1 || \
	    { $(APT_INSTALL) spin || { timeout 120 apt-get -qq update && $(APT_INSTALL) spin; }; } \
	    >/dev/null 2>&1 </dev/null || true

native: $(VENV)/.installed-test ## Build the plugin for NCCL (the tests do so too) and print its path
	$(BIN)/python -m ringstep.hostlib.native.build

vectors: $(VENV)/.installed-test ## Write the golden vectors anew from the reference marker
	$(BIN)/python tests/vectors/generate.py

p4: p4-generated ## Recompile the P4 program (needs p4c-bm2-ss on the PATH or in $$P4C_BM2)
	$(BIN)/python p4src/compile.py

p4-tofino2: p4-generated ## Report what Tofino 2 needs (needs p4c-barefoot on the PATH or in $$P4C_TOFINO)
	$(BIN)/python p4src/compile.py --target tofino2

p4-generated: $(VENV)/.installed-test
	$(BIN)/python -m ringstep.protocol.p4constants > p4src/include/constants.p4
	$(BIN)/python -m ringstep.protocol.p4constants --t2na > p4src/include/t2na/constants.p4
	$(BIN)/python -m ringstep.protocol.p4tables p4src/include/t2na

bench: $(VENV)/.installed-test ## Speed of the software switch
	$(BIN)/python bench/softswitch_pps.py

bench-controller: $(VENV)/.installed-test ## What the controller sustains, against software switches
	$(BIN)/python bench/controller.py

faults: $(VENV)/.installed-test ## Long fault run of the controller (MINUTES=10)
	$(BIN)/python bench/controller_faults.py --minutes $(or $(MINUTES),10)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Ringstep needs Python 3.11 or newer; try make PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[report]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[report,test]'
	@touch $@ $(VENV)/.installed-demo

# ns-3 has a licence of its own, and so has what links it: a distribution beside this one.
SIM_SOURCES := $(shell find ns3-model -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt -o -name pyproject.toml)

sim: $(VENV)/.installed-sim ## Build and install the simulator (`ringstep sim`)

$(VENV)/.installed-sim: $(SIM_SOURCES) | $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable './ns3-model[plot]'
	@touch $@

clean: ## Remove the environment and results
	rm -rf $(VENV) $(CLIENTS:%=$(VENV)-%) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
