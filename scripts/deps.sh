#!/bin/sh
# Installs what the build, the tests, the benchmark and the demonstration need on Debian 12, as root.
# Further packages are named as arguments. Only what is missing is fetched. Nothing asks a question.
set -eu

PACKAGES="bpftrace libbpf-tools nginx-light wrk gcc g++ libc6-dev binutils make python3 util-linux openssl ca-certificates curl python3-yaml podman crun clang clang-19
    libbpf-dev llvm-19-dev bpftool qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross strace linux-perf perl bpfcc-tools linux-headers-amd64 musl-tools libseccomp2
    golang-github-containers-common
    $*"

# These are in Debian 13's libbpf-tools only. They are unpacked beside the system, with the libraries that they were
# built for, and never installed.
NEWER_TOOLS="memleak futexctn"
NEWER_HOME=/usr/local/lib/beeline-test-tools
NEWER_PACKAGES="libbpf-tools libc6 libelf1t64 zlib1g libzstd1"

main() {
    if [ "$(id -u)" != 0 ]; then
        echo "deps.sh: not root, so nothing is installed; tests whose tools are missing will be skipped" >&2
    elif command -v apt-get >/dev/null; then
        install_packages
        has_newer_tools || unpack_newer_tools || echo "deps.sh: no $NEWER_TOOLS; their tests will be skipped" >&2
    else
        echo "deps.sh: no apt-get; install by hand: $PACKAGES" >&2
    fi
    prepare_rust
}

is_installed() {
    [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

install_packages() {
    missing=
    for package in $PACKAGES; do
        is_installed "$package" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    echo "deps.sh: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet --quiet
    # shellcheck disable=SC2086 # a list of words
    apt-get install --quiet --quiet --yes --no-install-recommends $missing
}

has_newer_tools() {
    for tool in $NEWER_TOOLS; do
        command -v "$tool" >/dev/null || return 1
    done
}

unpack_newer_tools() (
    set -e
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/files"
    touch "$work/status"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] http://deb.debian.org/debian trixie main" >"$work/sources.list"
    set -- -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=- \
        -o "Dir::State::Lists=$work/lists" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache" \
        -o APT::Sandbox::User=root
    echo "deps.sh: fetching $NEWER_TOOLS"
    timeout 300 apt-get --quiet --quiet "$@" update || exit 1
    cd "$work"
    # shellcheck disable=SC2086 # a list of words
    timeout 300 apt-get --quiet --quiet "$@" download $NEWER_PACKAGES || exit 1
    for package in "$work"/*.deb; do
        dpkg-deb -x "$package" "$work/files" || exit 1
    done
    mkdir -p "$NEWER_HOME"
    for library in ld-linux-x86-64.so.2 libc.so.6 libelf.so.1 libz.so.1 libzstd.so.1 libm.so.6; do
        cp -L "$work/files/usr/lib/x86_64-linux-gnu/$library" "$NEWER_HOME/"
    done
    for tool in $NEWER_TOOLS; do
        command -v "$tool" >/dev/null && continue
        cp "$work/files/usr/sbin/$tool"* "$NEWER_HOME/$tool"
        printf '#!/bin/sh\nexec %s/ld-linux-x86-64.so.2 --library-path %s %s/%s "$@"\n' \
            "$NEWER_HOME" "$NEWER_HOME" "$NEWER_HOME" "$tool" >"/usr/local/bin/$tool"
        chmod 755 "/usr/local/bin/$tool"
    done
)

# rust-toolchain.toml names the toolchain and its targets; rustup, where there is one, fetches what is missing.
prepare_rust() {
    if ! command -v cargo >/dev/null; then
        echo "deps.sh: no cargo: install Rust from https://rustup.rs" >&2
        exit 1
    fi
    if command -v rustup >/dev/null; then
        rustup target list --installed | grep -q x86_64-unknown-none || rustup target add x86_64-unknown-none
    fi
}

main
