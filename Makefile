# weir: build, prove, check. `make` alone builds the release programs.
#
#   make          build; installs what is missing if it may, else says what to install
#   make demo     some minutes: stock against weir on this kernel, table and report.html (without root: simulated; BUSY=1: beside other work)
#   make test     every test that this machine can run, and what was skipped
#   make lint     formatting, clippy, documentation, what is built for the fuzzer: warnings are errors
#   make fuzz     fuzz what reads frames, journals, messages, files and requests, two minutes each (clang)
#   make soak     the long runs, log under docs/results (root)
#   make mutants  50 defects, put in one by one, that the tests must catch (root, half an hour)
#   make install  into PREFIX, /usr/local; settings in SYSCONFDIR, /etc; DESTDIR for packages. After make, as root
#   make uninstall    removes it again, but for a changed weir.toml
#   make deb      target/deb/weir_VERSION_ARCH.deb
#   make rpm      target/rpm/weir-VERSION-1.ARCH.rpm, for distributions that use rpm (rpmbuild, in Debian's package rpm)
#   make rpm-test        it has the files of the .deb, installs, runs, upgrades and goes (root)
#   make static   target/static: weir and weir-guard as static programs, for hosts of any distribution (musl-tools, rustup target)
#   make sbom     target/sbom: what weir and weir-guard are made of, for those who look for known faults (CycloneDX 1.5)
#   make image    target/image/weir-VERSION-ARCH.oci.tar: an OCI image with nothing but these programs (buildah)
#   make image-test      the image twice to the same bytes, then guard, watch and undo in podman (root)
#   make kube-test       the DaemonSet's pod, started by podman kube play (root)
#   make rules-test      the alert rules from cause to end (promtool, in Debian's package prometheus)
#   make monitor-test    a real Prometheus over four hosts: alerts fire and clear (root, prometheus; 3 minutes)
#   make apt-repo        target/apt: an apt repository with that package (apt-utils; APT_KEY=ID signs it with gpg)
#   make package-test    a clean Debian takes it from there: install, guard, upgrade, rollback, purge (root, 2 minutes, after 1 to 7 for the build)
#   make browser-test    the page of weir watch --web in a real browser (installs Chromium, 350 MB)
#   make vm-test  real drivers in emulated machines with Debian kernels (QEMU); an hour
#   make deps     only install or name what is missing
#   make clean    remove everything that was built

CARGO ?= cargo
export CARGO

PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
# Where cargo puts what it builds.
BUILD ?= $(or $(CARGO_TARGET_DIR),target)/release
export PREFIX SYSCONFDIR DESTDIR BUILD

.PHONY: all build deps demo test lint fuzz soak mutants vm-test browser-test clean install uninstall deb rpm rpm-test apt-repo package-test static sbom image image-test rules-test monitor-test kube-test

all: build

deps:
	@sh scripts/deps.sh build

# The flags are read after deps has run, because it may have installed what they depend on.
build: deps
	$(CARGO) build --release --workspace $$(sh scripts/features.sh)
	@if [ -n "$$(sh scripts/features.sh)" ]; then \
		echo 'built: $(BUILD)/weir without BPF programs: no guard, no lab; make deps names what is missing'; \
	else \
		echo 'built: $(BUILD)/weir$(if $(filter-out all build,$(MAKECMDGOALS)),,; next: sudo $(BUILD)/weir check, or sudo BUILD=$(BUILD) sh scripts/demo.sh)'; \
	fi

demo: build
	@sh scripts/demo.sh

test:
	@sh scripts/deps.sh test
	@sh scripts/test.sh

# What only the fuzzer builds is checked too: by flags for the crates of the workspace alone, and with the features of all of
# them, so that what they depend on is as the lines above have left it.
lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets $$(sh scripts/features.sh) -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps $$(sh scripts/features.sh)
	RUSTC_WORKSPACE_WRAPPER=scripts/fuzzing-cfg.sh $(CARGO) check --workspace --bin weir $$(sh scripts/features.sh)

fuzz:
	@sh scripts/deps.sh fuzz
	@sh scripts/fuzz.sh 120

soak: build
	@sh scripts/soak.sh

# MUTANTS='--only NAME' for one, --list for what there are.
mutants:
	@sh scripts/deps.sh test
	$(CARGO) run -q -p xtask -- mutants $(MUTANTS)

install:
	@sh scripts/install.sh

uninstall:
	@sh scripts/install.sh --remove

deb: build
	@sh scripts/deps.sh deb
	@sh scripts/deb.sh

apt-repo: deb
	@sh scripts/deps.sh apt-repo
	@sh scripts/apt-repo.sh

rpm: build
	@sh scripts/deps.sh rpm
	@sh scripts/rpm.sh

rpm-test: build
	@sh scripts/deps.sh rpm-test
	@sh scripts/rpm-test.sh

package-test: deb
	@sh scripts/deps.sh package-test
	@sh scripts/package-test.sh

static:
	@sh scripts/deps.sh static
	@sh scripts/static.sh

sbom:
	@sh scripts/sbom.sh

image: static
	@sh scripts/deps.sh image
	@sh scripts/image.sh

image-test: static
	@sh scripts/deps.sh image-test
	@sh scripts/image-test.sh

kube-test: image
	@sh scripts/deps.sh kube-test
	@sh scripts/kube-test.sh

rules-test:
	@sh scripts/deps.sh rules
	$(CARGO) test -p weir --test packaging $$(sh scripts/features.sh) -- --nocapture

monitor-test:
	@sh scripts/deps.sh monitor-test
	@sh scripts/monitor-test.sh

browser-test:
	@sh scripts/deps.sh browser
	$(CARGO) test -p weir --test browser $$(sh scripts/features.sh) -- --nocapture

vm-test: build
	@sh scripts/vm-test.sh $(VM_TEST)

clean:
	$(CARGO) clean
	rm -f report.html report.json
