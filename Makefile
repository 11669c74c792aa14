# What people type. `make` alone builds; see each target's line.

.PHONY: build dist check test soak fuzz bench peers corpora matrix demo demo-guest deps

# The release build: target/release/beeline, and beside it beeline-llvm, the optimizing compiler,
# and beeline-guest, which runs in virtual machines: linked statically, it needs nothing but a
# kernel; and libbeeline_start, by which programs ask to be traced.
TARGET = $${CARGO_TARGET_DIR:-target}
build:
	./scripts/check-build.sh
	cargo build --release --workspace --bins --lib --examples
	./scripts/static.sh $(TARGET)/release beeline-guest
	./scripts/start-library.sh $(TARGET)/release

# What users get: target/dist/ with beeline and beeline-guest as static files, in an archive, a
# package for Debian, one for RPM and an image for containers. The same bytes wherever it is made;
# scripts/reproducible.sh tries that.
dist:
	./scripts/dist.sh

# Quick, before each commit: format, lints, documentation, unit tests.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo test --workspace --exclude beeline-e2e --exclude beeline-bench --lib

# Everything, on a Debian 12 as root; what a machine lacks is skipped, and said. In the release
# profile, so that nothing is compiled twice (`make check` has the unit tests with overflow checks);
# --show-output for the reasons of skips. Tools run once more with LLVM's code from the start, and
# with their calls carried out as in a virtual machine's guest, and once under a filter like a
# container's.
test: deps build
	@status=0; \
	cargo test --release --workspace --no-fail-fast -- --show-output || status=$$?; \
	echo "== with LLVM's code"; \
	BEELINE_ENGINE=llvm BEELINE_E2E_ENGINE=beeline cargo test --release --no-fail-fast -p beeline-e2e \
		--test scripts --test callbacks --test objects --test tasks -- --show-output || status=$$?; \
	echo "== with this machine's kernel as a guest's"; \
	BEELINE_E2E_ENGINE=guest cargo test --release --no-fail-fast -p beeline-e2e \
		--test scripts --test libbpf_tools --test mapped --test commands --test fast_path -- --show-output || status=$$?; \
	echo "== under a container's filter"; \
	BEELINE_E2E_ENGINE=sandbox cargo test --release --no-fail-fast -p beeline-e2e \
		--test libbpf_tools --test commands --test fast_path --test callbacks -- --show-output || status=$$?; \
	exit $$status

# The tests that could go on for ever, each for so many seconds, with new random numbers each time.
# What fails prints its BEELINE_SEED; `BEELINE_SEED=N make soak` repeats it.
SOAK_SECONDS ?= 600
SOAK = BEELINE_SOAK=$(SOAK_SECONDS) cargo test --release --no-fail-fast
SOAK_PACKAGES = git nodejs default-jdk-headless gdb libpython3.11-testsuite redis-tools postgresql
soak: deps build
	./scripts/deps.sh $(SOAK_PACKAGES)
	$(SOAK) -p beeline-maps --test kills --test scribble -- --show-output
	$(SOAK) -p beeline-e2e --test differential --test counters --test beside --test engines --test soundness --test programs --test storms --test faults -- --show-output
	$(SOAK) -p beeline-verifier --test mutants

# Bytes that nobody vouches for, each fuzz target for so many seconds. Needs a nightly compiler
# (rustup toolchain install nightly) and cargo-fuzz (cargo install cargo-fuzz), and for the agent
# its target (rustup target add --toolchain nightly x86_64-unknown-none). A target begins with its
# seeds, what earlier runs found, and the libbpf tools' object files. `session_page` and
# `dead_session` trace a process that they start.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= object btf bytecode decode aot_file stored_code host_message guest_message address policy memory_tree tool_calls relay_ring map_memory map_shards trace_ring session_page dead_session seccomp_filter unwind_info
FUZZ_LIMITS = -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512
fuzz:
	cargo run --release -p beeline-fuzz-api --example seeds fuzz/corpus $$(grep -s /sbin/ /var/lib/dpkg/info/libbpf-tools.list)
	for target in $(FUZZ_TARGETS); do \
		RUSTUP_TOOLCHAIN=nightly cargo fuzz run -O -a $$target -- -max_total_time=$(FUZZ_SECONDS) $(FUZZ_LIMITS) || exit; \
	done

# Beeline and the kernel side by side. `make bench ARGS="entry --json"` takes a part; ARGS=--help
# lists them.
bench: deps build
	$${CARGO_TARGET_DIR:-target}/release/beeline-bench $(ARGS)
	$(if $(ARGS),,$(MAKE) peers)

# Engines against native code, the kernel, rbpf, solana-sbpf and wasmtime; these are built here and
# nowhere else.
peers: deps
	cargo build --release --manifest-path bench/peers/Cargo.toml --target-dir $${CARGO_TARGET_DIR:-target}
	$${CARGO_TARGET_DIR:-target}/release/beeline-peers $(ARGS)

# Every program of Debian's eBPF tools, with the kernel's verdict beside Beeline's: writes
# docs/corpora.md anew. As root, on a Debian 12 with a network; a quarter of an hour.
corpora: deps build
	./scripts/corpora.sh

# Every tool that Debian ships, on the kernel and under Beeline, with what came of it: writes
# docs/tools.md anew. As root, on a Debian 12 with a network and nothing else to do; an hour.
MATRIX_PACKAGES = php-cli ruby tcl nodejs default-jdk-headless
matrix: deps build
	./scripts/deps.sh $(MATRIX_PACKAGES)
	./scripts/matrix.sh

# A Python program under a bpftrace one-liner, by Beeline and by the kernel.
demo: deps
	./scripts/demo.sh

# Tools on this machine with their programs in the kernel of a virtual machine, which it boots; two
# minutes, once everything is built.
demo-guest: deps
	./scripts/demo.sh guest

# Debian packages and the Rust target, only those that are missing; and, into a cache, what virtual
# machines are made of.
deps:
	./scripts/deps.sh
	./scripts/guest-deps.sh >/dev/null || echo "deps: no guests; their tests will be skipped"
