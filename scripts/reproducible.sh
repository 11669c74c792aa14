#!/bin/sh
# Builds what users get twice, in two different directories, and compares the bytes.
set -eu

main() {
    cd "$(dirname "$0")/.."
    tools=${CARGO_TARGET_DIR:-target}/dist-tools
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    export SOURCE_DATE_EPOCH
    build "$work/one"
    build "$work/another/directory"
    if diff "$work/one/target/dist/SHA256SUMS" "$work/another/directory/target/dist/SHA256SUMS"; then
        echo "reproducible.sh: the same bytes twice:"
        cat "$work/one/target/dist/SHA256SUMS"
    else
        echo "reproducible.sh: the two builds differ" >&2
        exit 1
    fi
}

# What git knows, as it is now, in a directory of its own. The packagers are only tools: built once at the most.
build() {
    mkdir -p "$1/target"
    git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$1"
    [ ! -d "$tools" ] || cp -r "$tools" "$1/target"
    (cd "$1" && env -u CARGO_TARGET_DIR ./scripts/dist.sh)
    tools=$1/target/dist-tools
}

main
