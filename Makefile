# weir: build, prove, check. `make` alone builds the release programs.
#
#   make          build; installs what is missing if it may, else says what to install
#   make demo     two minutes: stock against weir on this kernel, table and report.html (root)
#   make test     every test that this machine can run, and what was skipped
#   make lint     formatting, clippy, documentation: warnings are errors
#   make soak     the long runs, log under docs/results (root)
#   make deps     only install or name what is missing
#   make clean    remove everything that was built

CARGO ?= cargo
export CARGO

.PHONY: all build deps demo test lint soak clean

all: build

deps:
	@sh scripts/deps.sh build

# The flags are read after deps has run, because it may have installed what they depend on.
build: deps
	$(CARGO) build --release --workspace $$(sh scripts/features.sh)
	@echo 'built: target/release/weir; next: sudo target/release/weir check, or sudo make demo'

demo: build
	@sh scripts/demo.sh

test:
	@sh scripts/deps.sh test
	@sh scripts/test.sh

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $$(sh scripts/features.sh) -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps $$(sh scripts/features.sh)

soak: build
	@sh scripts/soak.sh

clean:
	$(CARGO) clean
	rm -f report.html report.json
