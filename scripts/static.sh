#!/bin/sh
# static.sh DIRECTORY PROGRAM...: builds beeline or beeline-guest so that it needs nothing but a kernel, and puts it into
# the directory (seen from the repository). The bytes depend on the sources, the toolchain and the C library only, not on where it is built.
set -eu

HOST=x86_64-unknown-linux-gnu

main() {
    directory=$1
    shift
    cd "$(dirname "$0")/.."
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
    forget_places
    for program in "$@"; do
        case $program in
        beeline) build --package beeline --bin beeline ;;
        beeline-guest) build --package beeline-vm-proxy --bin guest ;;
        *)
            echo "static.sh: $program is neither beeline nor beeline-guest" >&2
            exit 2
            ;;
        esac
        # Moved to its place whole: tests may run what is there.
        cp "$CARGO_TARGET_DIR/$HOST/static/${program#beeline-}" "$directory/$program.new"
        mv "$directory/$program.new" "$directory/$program"
    done
}

build() {
    cargo build --profile static --target "$HOST" "$@"
}

# Has the compilers link statically, and put fixed names in place of this machine's directories.
forget_places() {
    flags='-Ctarget-feature=+crt-static'
    c_flags=
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    # The last one that fits counts.
    for place in "$cargo_home=/cargo" "$PWD=/beeline" "$CARGO_TARGET_DIR=/target"; do
        flags=$(printf '%s\037--remap-path-prefix=%s' "$flags" "$place")
        c_flags="$c_flags -ffile-prefix-map=$place"
    done
    export CARGO_ENCODED_RUSTFLAGS="$flags"
    export CFLAGS_x86_64_unknown_linux_gnu="$c_flags"
}

main "$@"
