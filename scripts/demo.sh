#!/bin/sh
# Shows Beeline at work: a Python program's calls of malloc, counted by an unmodified bpftrace one-liner
# under Beeline and, where the kernel allows it, on the kernel; then the counts and the cost of a call.
set -eu
cd "$(dirname "$0")/.."

cargo build --release -p beeline-bench -p beeline
exec "${CARGO_TARGET_DIR:-target}/release/beeline-bench" demo
