# The commands of this repository. Each sets up what it needs (scripts/setup.sh: Debian packages, .venv, build) and is
# incremental: a second run takes seconds.
PYTHON = .venv/bin/python
.DEFAULT_GOAL := build
.PHONY: build demo demo-smoke test test-full sanitize bench lint wheel clean

build:  ## Debian packages, virtual environment, extension module
	scripts/setup.sh build

demo: build  ## trains the digits net and the character GPT on tpu
	$(PYTHON) examples/digits_cnn.py --device tpu
	$(PYTHON) examples/char_gpt.py --device tpu

demo-smoke: build  ## a few steps of each
	$(PYTHON) examples/digits_cnn.py --device tpu --smoke
	$(PYTHON) examples/char_gpt.py --device tpu --smoke

test-full:  ## every test, and all that takes long: the CPU plugin, three TPUs
	scripts/setup.sh test
	scripts/test.sh full

test:  ## every test: core, compiler, Python, examples
	scripts/setup.sh test
	scripts/test.sh

sanitize:  ## the core's tests under the address, undefined-behaviour and thread sanitizers
	scripts/setup.sh environment
	scripts/sanitize.sh

bench:  ## the measurements of bench/, with their peers
	scripts/setup.sh bench
	scripts/bench.sh

lint:  ## formats, ruff, layers
	scripts/setup.sh environment
	scripts/lint.sh

wheel:  ## dist/torch_tpu-*.whl, self-contained
	scripts/setup.sh environment
	CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$(CURDIR) CCACHE_SLOPPINESS=pch_defines,time_macros \
	  $(PYTHON) -m pip wheel --no-deps --no-build-isolation -w dist .

clean:
	rm -rf build build-* dist python/torch_tpu/*.so python/torch_tpu.egg-info
