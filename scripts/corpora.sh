#!/bin/sh
# Writes docs/corpora.md anew (or the file that is given), as root: installs the tools whose programs are judged, and shows
# them what they look for: tracefs and debugfs, and kernel headers in the running kernel's place. They are another
# kernel's, which does for compiling; both verifiers judge the same instructions. All of that is in a mount namespace that
# ends with this. Packages of a newer Debian, whose programs are inside their files, are unpacked into a cache and not installed.
set -eu

PACKAGES="bpfcc-tools linux-headers-amd64"
NEWER_SUITE=trixie
NEWER_PACKAGES="systemd libsystemd-shared libbpf-tools"
NEWER=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/beeline-corpora/$NEWER_SUITE

install_packages() {
    missing=
    for package in $PACKAGES; do
        state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    echo "corpora.sh: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet --quiet
    # shellcheck disable=SC2086 # a list of words
    apt-get install --quiet --quiet --yes --no-install-recommends $missing
}

# By an apt that knows the newer Debian alone, so that this machine's packages stay as they are.
unpack_newer() {
    mkdir -p "$NEWER/apt/lists/partial" "$NEWER/apt/archives/partial" "$NEWER/debs"
    touch "$NEWER/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $NEWER_SUITE main" \
        >"$NEWER/apt/sources.list"
    set -- -o Dir::Etc::sourcelist="$NEWER/apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$NEWER/apt" \
        -o Dir::State::status="$NEWER/apt/status" -o Dir::Cache="$NEWER/apt" -o APT::Sandbox::User=root --quiet --quiet
    apt-get "$@" update
    for package in $NEWER_PACKAGES; do
        rm -rf "$NEWER/debs/$package" "${NEWER:?}/$package"
        mkdir "$NEWER/debs/$package"
        (cd "$NEWER/debs/$package" && apt-get "$@" download "$package" && dpkg-deb --extract ./*.deb "$NEWER/$package" &&
            dpkg-deb --field ./*.deb Version >"$NEWER/$package/VERSION")
    done
}

# The newest headers, as `build` and `source` of the running kernel's modules; unless it has its own.
show_headers() {
    release=$(uname -r)
    [ ! -e "/lib/modules/$release/build" ] || return 0
    build=$(find /usr/src -maxdepth 1 -name 'linux-headers-*-amd64' | sort -V | tail -n 1)
    source=$(find /usr/src -maxdepth 1 -name 'linux-headers-*-common' | sort -V | tail -n 1)
    [ -n "$build" ] && [ -n "$source" ] || return 0
    mkdir -p /lib/modules
    mount -t tmpfs none /lib/modules
    mkdir "/lib/modules/$release"
    ln -s "$build" "/lib/modules/$release/build"
    ln -s "$source" "/lib/modules/$release/source"
}

show_tracing() {
    [ -e /sys/kernel/debug/sched ] || mount -t debugfs none /sys/kernel/debug || true
    [ -e /sys/kernel/tracing/events ] || mount -t tracefs none /sys/kernel/tracing || true
    [ -e /sys/kernel/debug/tracing/events ] || mount -t tracefs none /sys/kernel/debug/tracing || true
}

if [ "${BEELINE_CORPORA_INSIDE:-}" = "" ]; then
    if command -v apt-get >/dev/null; then
        install_packages
        unpack_newer || echo "corpora.sh: no packages of Debian $NEWER_SUITE"
    fi
    export BEELINE_CORPORA_NEWER="$NEWER"
    BEELINE_CORPORA_INSIDE=yes exec unshare --mount --propagation private "$0" "$@"
fi
show_headers
show_tracing
exec cargo run --release -p beeline-e2e --example corpora -- "$@"
