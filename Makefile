# `make setup` does nothing if it is up to date; every other target except `docs` and `clean` calls it first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup mini mini-ranks results docs test lint check recipes slow browser wheel alone clean
setup: .venv/.kernels

# Bytecode is compiled here: where Python may not write it (PYTHONDONTWRITEBYTECODE), every process would compile torch again.
.venv/.complete: setup.py pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==0.13.8"
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	touch $@

# Compiled once, and again after a change of a kernel.
.venv/.kernels: .venv/.complete $(shell grep -rl njit wenet_hs --include=*.py)
	$(BIN)/python tools/compile_kernels.py
	touch $@

mini: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/mini/s0/run.sh

# The same two recognisers trained by two processes each, on the speech of `make mini`: the same number of steps, error rates
# with overlapping intervals. About 20 minutes more than `make mini`.
mini-ranks: mini
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/mini/s0/run.sh --stage 3 --nproc 2 --exp examples/mini/s0/exp-nproc2
	$(BIN)/python tests/recipes/compare_ranks.py examples/mini/s0/exp examples/mini/s0/exp-nproc2

# RESULTS.md of each recipe and of the top folder, from the results files; the studies write those.
REPORT := $(CURDIR)/$(BIN)/wenet-hs report --markdown RESULTS.md
results: setup
	cd examples/mini/s0 && $(REPORT) --intro results/intro.md --more results/fusion.md --tables results/mini results/streaming
	cd examples/own/s0 && $(REPORT) --intro results/intro.md --tables results/adaptation results/field results/mboshi \
	  results/mboshi_encoder results/mboshi_encoder_whole results/mboshi_streaming
	cd examples/ucla/s0 && $(REPORT) --intro results/intro.md --tables results/table3 results/table3_curves results/table3_ctc \
	  results/table3_pretrained results/table3_encoder results/table3_inventory results/table3_inventory_placed \
	  results/table3_encoder_inventory
	cd examples/commonvoice/s0 && $(REPORT) --intro results/intro.md --tables results/table4 results/table4_bpe results/table5
	cd examples/wikitext/s0 && $(REPORT) --intro lm_results/intro.md --tables lm_results/table4 lm_results/table3 \
	  lm_results/softmax lm_results/choice
	$(BIN)/python tools/results_page.py --out RESULTS.md

# A small environment: the site needs none of the toolkit's packages.
.venv-docs/.complete: constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt mkdocs-material
	touch $@

# The documentation as a site, build/site/index.html, which can be read and searched from the disk; a broken link is an error (and --quiet would hide it).
docs: .venv-docs/.complete
	rm -rf build/docs && mkdir -p build/docs
	git ls-files -z -- '*.md' '*.png' '*.svg' '*.yaml' docs/iframe-worker.js docs/site.css examples/runtime/decode_wav.py | tar --create --null --files-from - | tar --extract --directory build/docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --config-file docs/mkdocs.yml

test: setup
	$(BIN)/python -m pytest -n auto

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/shellcheck -x .ci/run .ci/newest_torch .ci/wheel_page .ci/alone tools/*.sh examples/*/s0/*.sh benchmarks/*.sh

check: lint test

recipes: setup
	$(BIN)/python -m pytest -n auto -m recipe

slow: setup
	$(BIN)/python -m pytest -n auto -m slow
	$(BIN)/python -m pytest -n auto -m slow tests/gpu

# The page of `wenet-hs app` in a Chromium of the system (Debian: apt-get install chromium), checked by axe-core (npm).
browser: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[browser]'
	npm ci --silent --ignore-scripts --prefix tests/app
	$(BIN)/python -m pytest -n auto -m browser

# The page of a wheel that is installed in an empty environment outside of the checkout, without bash on the PATH.
wheel: setup
	npm ci --silent --ignore-scripts --prefix tests/app
	.ci/wheel_page

# The trees and heads in an environment that has only torch, numpy, numba and what these require.
alone: setup
	.ci/alone

clean:
	rm -rf .venv .venv-docs build dist *.egg-info
