#!/bin/sh
# Shows Beeline at work. Without an argument: a Python program's calls of malloc, counted by an
# unmodified bpftrace one-liner under Beeline and, where the kernel allows it, on the kernel; then the
# counts and the cost of a call. With `guest`: opensnoop, bpftrace and vcpu-pin on this machine, with
# their programs in a virtual machine's kernel.
set -eu
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}"

case ${1-} in
'') demo=demo ;;
guest)
    demo=demo-guest
    # Again for its reason, where `make deps` went on without guests.
    ./scripts/guest-deps.sh >/dev/null
    mkdir -p "$target/release"
    ./scripts/static.sh "$target/release" beeline-guest
    ;;
*)
    echo "demo.sh: $1 is no demonstration: there is guest, and the one without a name" >&2
    exit 2
    ;;
esac
cargo build --release -p beeline-bench -p beeline
exec "$target/release/beeline-bench" "$demo"
