#!/bin/sh
# Runs shipped tools on the kernel and under Beeline, and writes docs/tools.md anew; as root, with a network. Tools of
# Debian sid, with the libraries that they were built for, are unpacked into a cache, and the examples of Go's eBPF
# library are built there; neither is installed. MATRIX names families ("bcc libbpf"), MATRIX_TOOL a part of tools' names.
set -eu

CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/beeline-matrix
SUITE=sid
PACKAGES="bpftrace libbpf-tools"
MODULE=github.com/cilium/ebpf
MODULE_VERSION=v0.22.0

# By an apt that knows that Debian alone, so that this machine's packages stay as they are.
unpack_newer() {
    apt=$CACHE/apt root=$CACHE/$SUITE
    [ ! -e "$root" ] || return 0
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$root.part/var/lib/dpkg"
    : >"$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $SUITE main" >"$apt/sources.list"
    set -- -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$apt" \
        -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o APT::Sandbox::User=root --quiet --quiet --yes
    timeout 300 apt-get "$@" update || return 1
    # shellcheck disable=SC2086 # a list of words
    timeout 900 apt-get "$@" --no-install-recommends --download-only install $PACKAGES || return 1
    ln -s usr/lib "$root.part/lib"
    for package in "$apt"/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root.part" --keep-directory-symlink || return 1
        dpkg-deb --field "$package" >>"$root.part/var/lib/dpkg/status"
        echo >>"$root.part/var/lib/dpkg/status"
    done
    mv "$root.part" "$root"
}

build_examples() {
    [ ! -e "$CACHE/go/VERSION" ] || return 0
    mkdir -p "$CACHE/go/bin"
    directory=$(cd / && go mod download -json "$MODULE@$MODULE_VERSION" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') || return 1
    rm -rf "$CACHE/go/source"
    cp -r "$directory" "$CACHE/go/source" || return 1
    chmod -R u+w "$CACHE/go/source"
    (cd "$CACHE/go/source" && GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o "$CACHE/go/bin/" ./examples/...) || return 1
    echo "$MODULE $MODULE_VERSION, $(go version | cut -d ' ' -f 3)" >"$CACHE/go/VERSION"
}

unpack_newer || echo "matrix.sh: no packages of Debian $SUITE" >&2
build_examples || echo "matrix.sh: no examples of $MODULE" >&2
exec cargo test --release -p beeline-e2e --test matrix -- --ignored --nocapture measure
