#!/bin/sh
# Says what the build lacks on this machine, and how to get it. Prints nothing if all is there.
set -eu

LLVM=${LLVM_SYS_191_PREFIX:-/usr/lib/llvm-19}
MACHINE=x86_64-unknown-none
RUST=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$(dirname "$0")/../rust-toolchain.toml")

main() {
    missing=0
    if ! has cargo || ! has rustc; then
        lacks "cargo and rustc, version $RUST" "see https://rustup.rs"
    elif ! is_new_enough; then
        lacks "Rust $RUST or later: this is $(rustc --version)" "rustup toolchain install $RUST; see https://rustup.rs"
    elif ! has_machine; then
        lacks "Rust's library for $MACHINE, which the agent is built for" "rustup target add $MACHINE"
    fi
    has cc || lacks "cc, a C compiler and linker" "apt-get install gcc libc6-dev"
    if ! [ -x "$LLVM/bin/llvm-config" ]; then
        lacks "LLVM 19 with its headers: there is no $LLVM/bin/llvm-config" \
            "apt-get install llvm-19-dev; for one elsewhere set LLVM_SYS_191_PREFIX"
    elif ! is_llvm_19; then
        lacks "LLVM 19: $LLVM has $("$LLVM/bin/llvm-config" --version)" "apt-get install llvm-19-dev"
    fi
    [ "$missing" = 0 ] || {
        echo "check-build.sh: on Debian 12, as root, \`make deps\` installs all of it but Rust itself" >&2
        exit 1
    }
}

has() {
    command -v "$1" >/dev/null
}

is_new_enough() {
    version=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n' "$RUST" "$version" | sort -V | head -n 1)" = "$RUST" ]
}

is_llvm_19() {
    case $("$LLVM/bin/llvm-config" --version) in
    19.1.*) ;;
    *) false ;;
    esac
}

has_machine() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$MACHINE" ]
}

# lacks WHAT REMEDY
lacks() {
    missing=1
    echo "check-build.sh: the build needs $1 ($2)" >&2
}

main
