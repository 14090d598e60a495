# make demo    trains a tiny MoE by Coding RL on this machine's CPU (SEED=1 another seed, FRESH=1 from the beginning)
# make test    the tests, runs of verl's trainer included (make unit: without; make vllm, make verifiers: with the real ones)        make lint    ruff        make bench    ours against its peers
#
# Needs Linux and Python 3.11 or 3.12, nothing else. Everything is installed into .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SEED ?= 0
DEMO := $(BIN)/python -m rufus_plugins.recipes.demo --seed $(SEED) $(if $(FRESH),--fresh)

# torch comes first and by its exact pin: a plain `torch` would be a newer one, perhaps a CUDA build of several GB.
# TORCH_ARGS="--index-url ..." takes it from another index, for example PyTorch's own index of CPU builds.
TORCH_ARGS ?=

.PHONY: demo demo-control venv test unit e2e vllm verifiers lint bench sandbox chromium clean

demo: $(VENV)/.installed sandbox
	@exec $(DEMO)

demo-control: $(VENV)/.installed sandbox
	@exec $(DEMO) --control

venv: $(VENV)/.installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v < (3, 13))' || { \
	  echo "rufus-plugins needs Python 3.11 or 3.12; $(PYTHON) is neither. Give one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "On Debian and Ubuntu: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet $(shell grep '^torch==' constraints.txt) $(TORCH_ARGS)
	$(PIP) install --quiet -c constraints.txt -e '.[data]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --quiet -c constraints.txt -e '.[dev,data]'
	@touch $@

# Untrusted code runs in bubblewrap where it is there, else behind landlock and seccomp, else not at all.
sandbox:
	@command -v bwrap >/dev/null || { \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    echo "installing bubblewrap"; (apt-get -qq update && apt-get -qq install -y bubblewrap) >/dev/null 2>&1; \
	  elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then \
	    echo "installing bubblewrap"; (sudo -n apt-get -qq update && sudo -n apt-get -qq install -y bubblewrap) >/dev/null 2>&1; \
	  fi; }; \
	command -v bwrap >/dev/null || \
	  echo "bubblewrap is missing: install it (sudo apt-get install bubblewrap) for the stronger sandbox."

# The report's page is tested in a real browser.
chromium:
	@.ci/chromium

test: $(VENV)/.installed-dev sandbox chromium
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

unit: $(VENV)/.installed-dev sandbox chromium
	$(BIN)/python -m pytest -m "not e2e and not slow" $(ARGS)

e2e: $(VENV)/.installed-dev sandbox
	$(BIN)/python -m pytest -m "e2e" $(ARGS)

# The real vLLM on CPU beside verl, in a venv of its own (4 GB): judge server, reward model, rollout with its routes.
vllm:
	PYTHON="$(PYTHON)" TORCH_ARGS="$(TORCH_ARGS)" tests/vllm_cpu/run.sh $(VENV)-vllm $(ARGS)

# The real PrimeIntellect verifiers, in a venv of its own (700 MB: it pins another mcp than ours): tasksets as environments and rewards.
verifiers:
	PYTHON="$(PYTHON)" tests/verifiers_env/run.sh $(VENV)-verifiers $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/.installed-dev sandbox
	@for file in bench/[a-z]*.py; do \
	  case $$file in bench/gpu_*) continue;; esac; \
	  $(BIN)/python -m bench.$$(basename $$file .py) $(if $(QUICK),--quick) || failed=1; \
	done; exit $${failed:-0}

clean:
	rm -rf $(VENV) $(VENV)-vllm $(VENV)-verifiers runs
