# Each target makes .venv first, with the exact versions of constraints.txt.
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
PEERS := .venv-peers/bin/python
TRAINER := .venv-trainer/bin/python
JOBS ?= 2
CHANGES = $(foreach change,$(SET),-S $(change))
COMPARED = .scratch/peers/$(if $(DATASET),$(notdir $(abspath $(DATASET))),default)
export PATH := $(BIN):$(PATH)
EXAMPLES := "Marfan syndrome" "Early infantile epileptic encephalopathy 15" "Congenital deafness with retinitis pigmentosa"

.PHONY: run test lint types wheel env bench bench-service screenshots bench-transformers trainer-env growth new-labels profile alternate peers peers-env standing study sweep interruptions damage mutations estimate clean

run: env  ## the whole pipeline on the default dataset, its metrics, three predictions and its report
	dvc repro
	@echo && xc table
	@echo && xc predict -k 5 $(EXAMPLES)
	@echo && xc report
	@echo && xc next

test: env  ## all tests, two at a time (make JOBS=8 test on a larger machine)
	@python -c "from testing.browser import installed; installed() or print('no browser (the package chromium): the tests of the page are skipped')"
	python -m pytest -n $(JOBS) --dist worksteal

lint: env  ## ruff: lint and format
	ruff check .
	ruff format --check .

types: env  ## mypy over longtail, stages, unidec, xcutils
	python -m mypy

wheel: env  ## dist/longtail-*.whl, which pip installs anywhere
	rm -rf build dist
	python -m build --wheel --no-isolation
	rm -rf build

env: .venv/.made

.venv/.made: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "error: Longtail needs Python 3.10 or later: make PYTHON=python3.11 run")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

peers-env: .venv-peers/.made  ## the environment of the tools we compare with (libpecos wants an older numpy)

.venv-peers/.made: benchmarks/peers-constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13) and "error: libpecos has builds for Python 3.10 to 3.12: make PYTHON=python3.11 peers")'
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers-constraints.txt
	touch $@

peers: env peers-env  ## PECOS, omikuji, napkinXC and BM25 on exactly our split: DATASET=..., SET="K=32768 ...", METHODS=a,b
	python -m benchmarks.ours --work $(COMPARED) $(if $(DATASET),--dataset $(DATASET)) $(CHANGES)
	python -m benchmarks.peers --export $(COMPARED)/export --out $(COMPARED)/peers --peers-python $(PEERS) \
		--metrics $(COMPARED)/metrics.json --timings $(COMPARED)/timings.json \
		$(if $(METHODS),--methods $(METHODS)) $(if $(LIMIT),--limit $(LIMIT))

standing: env  ## the defaults with seeds 0, 1, 2 against every other tool, on the default dataset and DATASETS="a b": one table
	$(MAKE) peers
	$(foreach set,$(DATASETS),$(MAKE) peers DATASET=$(set) &&) true
	python -m benchmarks.standing $(foreach set,$(DATASETS),--dataset $(set)) $(if $(SEEDS),--seeds $(SEEDS))

bench: env peers-env  ## clustering a million vectors; steps and label correlations at many labels: time and memory
	python -m benchmarks.clustering --pecos $(PEERS)
	python -m benchmarks.classifier_step
	python -m benchmarks.correlations
	python -m benchmarks.all_labels

bench-service: env  ## xc serve under load: texts per second and waiting times for 1, 8, 64 clients, two workers
	python -m benchmarks.service_load

screenshots: env  ## the pictures of the page in docs/
	python -m benchmarks.screenshots

growth: env  ## the whole pipeline on generated sets of 10,000 to 1,000,000 labels: time and memory of every stage
	python -m benchmarks.growth $(if $(SIZES),--sizes $(SIZES)) $(CHANGES)

new-labels: env  ## labels added without training: how well they are found, how long 10,000 changes of 262,000 take
	python -m benchmarks.new_labels
	python -m benchmarks.new_labels --timings

profile: env  ## where the time of the finished run goes: every stage again under cProfile
	python -m benchmarks.profile_run $(if $(PROJECT),--project $(PROJECT))

alternate: env  ## an older commit against the present one, in turns, stage by stage: OLD=<commit>, DATASET=..., SET=...
	$(if $(OLD),,$(error name the older commit: make alternate OLD=<commit>))
	python -m benchmarks.alternate $(OLD) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(DATASET),--dataset $(DATASET)) $(CHANGES)

trainer-env: .venv-trainer/.made  ## the environment of sentence-transformers and its trainer

.venv-trainer/.made: constraints.txt benchmarks/transformers-constraints.txt
	$(PYTHON) -m venv .venv-trainer
	.venv-trainer/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/transformers-constraints.txt
	touch $@

bench-transformers: env trainer-env  ## texts per second of MiniLM-L6 beside sentence-transformers; AVX2, bfloat16
	dvc repro prepare
	python -m benchmarks.transformers_speed --trainer-python $(TRAINER)

estimate: env  ## the stages' estimates of memory and time against what they take, on two datasets
	python -m tests.robustness.estimates

interruptions: env  ## kill each long stage at random moments, go on, compare bytes; fill the disk in mid-write
	dvc repro dvc.yaml unidec/dvc.yaml
	python -m tests.robustness.interruptions

damage: env  ## truncate, flip, empty and swap every file of every artifact; see what its readers say
	python -m tests.robustness.damage

mutations: env  ## 10,000 damaged files of every form of dataset: read or refused with a sentence
	python -m tests.robustness.mutations

sweep: env  ## K and encoder sweeps through dvc exp run --queue; tables and plots in docs/
	python -m study.sweep

study: env  ## the papers' findings, one by one, and every recipe, through dvc exp run; docs/study.md
	python -m study.findings

clean:
	rm -rf .venv .venv-peers .venv-trainer build dist longtail.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
