# SPDX-License-Identifier: Apache-2.0
# The verbs. What they do lives in scripts/, in cargo and in posthaste-lab.

CARGO := cargo --locked
PREFIX := /usr/local
FUZZ_SECONDS := 60
TARGET = $(or $(CARGO_TARGET_DIR),target)
RELEASE = $(TARGET)/$(shell rustc --print host-tuple)/release
UNITS = posthaste.service posthaste-controller.service
UNIT_TESTS = --lib --bins --test congestion --test worker
E2E_TESTS = --test e2e --test programs
FUZZ = --manifest-path fuzz/Cargo.toml
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help setup setup-bench build demo bench test lint unit e2e kernel-test fuzz fmt deny typos install install-service clean
.NOTPARALLEL:

help: ## list the verbs
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

setup: ## install what this machine lacks (needs root)
	scripts/setup.sh

setup-bench: ## install what posthaste is compared with (needs root)
	scripts/setup-bench.sh

build: ## build the release binaries
	$(CARGO) build --release --workspace

demo: setup build ## fetch files directly and through a node, side by side (needs root)
	$(RELEASE)/posthaste-lab demo

bench: setup-bench build ## compare posthaste with IP forwarding, HAProxy and nginx, a quarter of an hour (needs root)
	$(RELEASE)/posthaste-lab compare --output docs/results

test: setup lint unit e2e ## everything that must pass (needs root)

lint: ## formatting, clippy with warnings as errors, of what fuzzing builds too, and the documents
	$(CARGO) fmt --all --check
	$(CARGO) fmt $(FUZZ) --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --package posthaste-documents
	$(CARGO) clippy $(FUZZ) --target-dir $(TARGET) --no-default-features --features invariants -- -D warnings

unit: ## unit tests and those of workers in process (some need root)
	$(CARGO) run --package posthaste-suite -- --jobs 3 -- --workspace $(UNIT_TESTS)

e2e: ## the real binary and the eBPF programs in network namespaces (needs root)
	$(CARGO) run --package posthaste-suite -- -- --workspace $(E2E_TESTS)

kernel-test: build ## a node on Linux 6.1, in an emulated machine (needs root, qemu-system-x86, ethtool)
	scripts/kernel-test.sh $(RELEASE)/posthaste

fuzz: ## feed noise to what reads frames, events, messages and files, FUZZ_SECONDS each (needs g++)
	scripts/fuzz.sh $(FUZZ_SECONDS)

fmt: ## format the Rust and the C code in place (needs clang-format)
	cargo fmt --all
	cargo fmt $(FUZZ)
	clang-format -i crates/bpf/src/*.c crates/bpf/src/*.h

deny: ## licences, advisories and sources of the dependencies (needs cargo-deny)
	cargo deny --locked check

typos: ## spelling (needs typos)
	typos

install: build install-service ## install the programs, the systemd units and their user under PREFIX, and a configuration in /etc
	install -D -m 755 $(RELEASE)/posthaste $(DESTDIR)$(PREFIX)/bin/posthaste
	install -D -m 755 $(RELEASE)/posthaste-lab $(DESTDIR)$(PREFIX)/bin/posthaste-lab

install-service: ## only the units, which name the programs under PREFIX, their user, and a configuration if there is none
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in $(UNITS); do \
		sed 's|@bindir@|$(PREFIX)/bin|' packaging/$$unit.in > $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit && \
		chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit 1; \
	done
	install -D -m 644 packaging/posthaste.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/posthaste.conf
	test -e $(DESTDIR)/etc/posthaste/node.toml || \
		install -D -m 644 packaging/node.toml $(DESTDIR)/etc/posthaste/node.toml

clean: ## remove what was built
	cargo clean
