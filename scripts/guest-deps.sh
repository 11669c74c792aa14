#!/bin/sh
# Fetches what boots virtual machines in the tests and the benchmark, into a folder of its own; nothing is installed but
# small tools to unpack with. For Debian 12 as root; again only where something is missing. Prints the folder's name last.
#
#   qemu-system-x86_64, vhost-device-vsock    programs, to be called by these names
#   kernel-6.12, kernel-6.1                   vmlinux, config and the modules that a guest needs, unpacked
#   busybox                                   static
#   tools.ext4                                a disk with bpftrace, the libbpf tools and the libraries that they need
set -eu

KIT=${BEELINE_GUEST_KIT:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/beeline-guests}
VHOST_VERSION=0.3.0 # of the crate vhost-device-vsock
VHOST=vhost-device-vsock
KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
MIRROR=http://deb.debian.org

# In the order in which a guest loads them; a kernel that has one built in has no such file.
MODULES="virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_console virtio_blk failover
    net_failover virtio_net vsock vmw_vsock_virtio_transport_common vmw_vsock_virtio_transport"

# Their names on the disk; the libraries are found by ldd.
TOOLS_PACKAGES="bpftrace libbpf-tools"

main() {
    export DEBIAN_FRONTEND=noninteractive
    mkdir -p "$KIT"
    chmod 755 "$KIT"
    # Two at a time would unpack over each other.
    exec 9>"$KIT/lock"
    flock 9
    work=$(mktemp -d "$KIT/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    install_unpackers
    [ -x "$KIT/qemu-system-x86_64" ] || unpack_qemu
    [ -e "$KIT/kernel-6.12/vmlinux" ] || unpack_kernel 6.12 bookworm-backports
    [ -e "$KIT/kernel-6.1/vmlinux" ] || unpack_kernel 6.1 bookworm-security
    [ -x "$KIT/busybox" ] || unpack_busybox
    [ "$(cat "$KIT/tools.version" 2>/dev/null)" = "$(tools_version)" ] || make_tools
    [ -x "$KIT/$VHOST" ] || build_vhost
    echo "$KIT"
}

say() {
    echo "guest-deps.sh: $*" >&2
}

install_unpackers() {
    missing=
    for package in lz4 xz-utils zstd e2fsprogs libbpf-tools bpftrace; do
        [ "$(dpkg-query --show --showformat='${db:Status-Status}' $package 2>/dev/null)" = installed ] ||
            missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    [ "$(id -u)" = 0 ] || { say "as root, install$missing" && return 1; }
    say "installing$missing"
    apt-get update --quiet --quiet
    # shellcheck disable=SC2086 # a list of words
    apt-get install --quiet --quiet --yes --no-install-recommends $missing
}

# apt with Debian's own lists of packages, whatever this machine's are; it checks what it fetches.
lists_made=
debian() {
    program=$1
    shift
    timeout 600 "$program" --quiet --quiet -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=- \
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root \
        -o Debug::NoLocking=1 "$@"
}

prepare_lists() {
    [ -z "$lists_made" ] || return 0
    lists_made=yes
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    {
        echo "deb [signed-by=$KEYS] $MIRROR/debian bookworm main"
        echo "deb [signed-by=$KEYS] $MIRROR/debian bookworm-backports main"
        echo "deb [signed-by=$KEYS] $MIRROR/debian-security bookworm-security main"
    } >"$work/sources.list"
    debian apt-get update
}

# fetch FOLDER PACKAGE=VERSION...: unpacks packages there.
fetch() {
    folder=$1
    shift
    mkdir -p "$work/packages" "$folder"
    (cd "$work/packages" && debian apt-get download "$@")
    for package in "$work/packages"/*.deb; do
        dpkg-deb -x "$package" "$folder"
    done
    rm -r "$work/packages"
}

# QEMU of backports and those of its libraries that this machine lacks: what an installation would bring. qemu-user would
# only be renewed with it.
unpack_qemu() {
    prepare_lists
    say "fetching QEMU"
    # shellcheck disable=SC2046 # a list of words
    fetch "$work/qemu" $(debian apt-get --simulate install --target-release bookworm-backports --no-install-recommends \
        --reinstall qemu-system-x86 | sed -n '/^Inst qemu-user /d; s/^Inst \([^ ]*\) \(\[[^]]*\] \)\?(\([^ ]*\) .*/\1=\3/p')
    rm -rf "$KIT/qemu"
    mv "$work/qemu" "$KIT/qemu"
    cat >"$work/launcher" <<-END
		#!/bin/sh
		export LD_LIBRARY_PATH="$KIT/qemu/usr/lib/x86_64-linux-gnu:$KIT/qemu/lib/x86_64-linux-gnu"
		exec "$KIT/qemu/usr/bin/qemu-system-x86_64" -L "$KIT/qemu/usr/share/qemu" -L "$KIT/qemu/usr/share/seabios" \\
		    -L "$KIT/qemu/usr/lib/ipxe/qemu" "\$@"
	END
    chmod 755 "$work/launcher"
    "$work/launcher" --version >&2
    mv "$work/launcher" "$KIT/qemu-system-x86_64"
}

# unpack_kernel SERIES SUITE: the newest kernel of a series.
unpack_kernel() {
    prepare_lists
    image=$(debian apt-cache show linux-image-cloud-amd64 |
        sed -n "s/^Depends: \(linux-image-$1\.[^ ]*\) (= \([^)]*\))/\1=\2/p" | sort --version-sort | tail -n 1)
    say "fetching kernel $1: $image"
    fetch "$work/$1" "$image"
    kernel="$work/kernel-$1"
    mkdir -p "$kernel/modules"
    cp "$work/$1"/boot/config-* "$kernel/config"
    extract_vmlinux "$work/$1"/boot/vmlinuz-* >"$kernel/vmlinux"
    for module in $MODULES; do
        found=$(find "$work/$1" -name "$module.ko*" -type f)
        case $found in
        '') continue ;;
        *.xz) xz --decompress --stdout "$found" >"$kernel/modules/$module.ko" ;;
        *) cp "$found" "$kernel/modules/$module.ko" ;;
        esac
        echo "$module" >>"$kernel/modules/order"
    done
    rm -rf "$KIT/kernel-$1" "${work:?}/$1"
    mv "$kernel" "$KIT/kernel-$1"
}

# The ELF file in a bzImage: where it is stands in the set-up header (Documentation/arch/x86/boot.rst), behind so many
# sectors of set-up code. The four bytes behind it are its length unpacked.
extract_vmlinux() {
    sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$1" | tr -d ' ')
    offset=$(od -An -tu4 -j $((0x248)) -N 4 "$1" | tr -d ' ')
    length=$(od -An -tu4 -j $((0x24c)) -N 4 "$1" | tr -d ' ')
    tail -c +$(((sectors + 1) * 512 + offset + 1)) "$1" | head -c $((length - 4)) >"$work/payload"
    case $(od -An -tx1 -N 4 "$work/payload") in
    ' 28 b5 2f fd') zstd --decompress --stdout --quiet "$work/payload" ;;
    ' 02 21 4c 18') lz4 -d -c -q "$work/payload" ;;
    ' fd 37 7a 58') xz --decompress --stdout --single-stream "$work/payload" ;;
    ' 1f 8b '*) gzip --decompress --stdout "$work/payload" ;;
    *) say "$1 is packed in an unknown way" && return 1 ;;
    esac
}

unpack_busybox() {
    prepare_lists
    fetch "$work/busybox" "busybox-static"
    cp "$work/busybox/bin/busybox" "$KIT/busybox"
}

tools_version() {
    # shellcheck disable=SC2086 # a list of words
    echo 1 $(dpkg-query --show $TOOLS_PACKAGES libc6)
}

# The programs and what they are linked with, at the paths that they have here.
make_tools() {
    say "making a disk of tools"
    mkdir -p "$work/tools/usr/sbin" "$work/tools/usr/bin" "$work/tools/lib64" "$work/tools/usr/lib/x86_64-linux-gnu"
    ln -s usr/lib "$work/tools/lib"
    # shellcheck disable=SC2086 # a list of words
    dpkg-query --listfiles $TOOLS_PACKAGES | grep -E '^/usr/s?bin/.' | while read -r file; do
        [ ! -f "$file" ] || cp --no-dereference "$file" "$work/tools$file"
    done
    find "$work/tools" -type f -exec ldd {} + 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u >"$work/libraries"
    # Programs of the tests run in guests as well.
    for library in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libgcc_s.so.1 libstdc++.so.6; do
        echo "/lib/x86_64-linux-gnu/$library"
    done >>"$work/libraries"
    while read -r library; do
        cp --dereference "$library" "$work/tools/usr/lib/x86_64-linux-gnu/"
    done <"$work/libraries"
    cp --dereference /lib64/ld-linux-x86-64.so.2 "$work/tools/lib64/"
    size=$(($(du --summarize --block-size=1M "$work/tools" | cut -f 1) * 11 / 10 + 32))
    PATH="$PATH:/usr/sbin:/sbin" mke2fs -q -t ext4 -O ^has_journal -m 0 -d "$work/tools" \
        "$work/tools.ext4" "${size}M" >/dev/null 2>&1
    mv "$work/tools.ext4" "$KIT/tools.ext4"
    tools_version >"$KIT/tools.version"
}

build_vhost() {
    say "building $VHOST"
    cargo install --quiet --locked "$VHOST" --version "$VHOST_VERSION" --root "$work/cargo" --target-dir "$work/build"
    mv "$work/cargo/bin/$VHOST" "$KIT/$VHOST"
}

main
