#!/bin/sh
# Makes what users get, in target/dist: an archive, a package for Debian, one for RPM, an image for containers, and their
# SHA256SUMS. Needs what `make build` needs except for LLVM, and python3; builds cargo-deb and cargo-generate-rpm, once,
# from crates.io.
set -eu

CARGO_DEB=3.8.0
CARGO_GENERATE_RPM=0.21.1
HOST=x86_64-unknown-linux-gnu

main() {
    cd "$(dirname "$0")/.."
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
    # Where both packagers look for what they package: `target/release/` in their lists leads here.
    files=$CARGO_TARGET_DIR/$HOST/static/files
    dist=$CARGO_TARGET_DIR/dist
    tools=$CARGO_TARGET_DIR/dist-tools
    version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    name=beeline-$version-x86_64-linux
    find_epoch
    umask 022
    rm -rf "$files" "$dist"
    mkdir -p "$files/bin" "$dist"

    tool cargo-deb "$CARGO_DEB"
    tool cargo-generate-rpm "$CARGO_GENERATE_RPM"
    ./scripts/static.sh "$files/bin" beeline beeline-guest
    ./scripts/start-library.sh "$files/lib"
    manual
    export SOURCE_DATE_EPOCH="$epoch"
    documents
    archive
    packages
    python3 scripts/oci-image.py "$version" "$files/bin/beeline" "$dist/$name.oci.tar"
    (cd "$dist" && sha256sum -- * >SHA256SUMS && ls -l)
}

# Finds the time that all files have: that of the last commit, unless SOURCE_DATE_EPOCH says another one. It is told to
# packagers only: build scripts would run again for each commit.
find_epoch() {
    epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} || {
        echo "dist.sh: this is no git repository: set SOURCE_DATE_EPOCH to the time of the release" >&2
        exit 1
    }
    unset SOURCE_DATE_EPOCH
}

# tool NAME VERSION: installs it beside the build, unless it is there.
tool() {
    [ ! -x "$tools/$1-$2/bin/$1" ] || return 0
    echo "dist.sh: building $1 $2 from crates.io: once, a few minutes"
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/dist-tools/build \
        cargo install --quiet --locked --version "=$2" --root "$tools/$1-$2" "$1" || {
        echo "dist.sh: $1 $2 cannot be built; it comes from crates.io" >&2
        exit 1
    }
}

# Manual pages and completions.
manual() {
    cargo build --release --package beeline --example manual
    "$CARGO_TARGET_DIR/release/examples/manual" "$files"
    gzip -9 --no-name "$files"/man/*.1
}

documents() {
    mkdir "$files/doc" "$files/examples"
    cp README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT "$files/doc"
    cp -r packaging/* "$files/examples"
    # What is linked into the programs, and its licences.
    echo 'GNU C Library LGPL-2.1-or-later' >"$files/doc/LIBRARIES"
    cargo tree --locked --edges normal --target "$HOST" --prefix none --format '{p} {l}' \
        --package beeline --package beeline-vm-proxy |
        sed -n 's/ (\*)$//; / (\//d; /./p' | LC_ALL=C sort -u >>"$files/doc/LIBRARIES"
    find "$files" -type f -exec chmod 644 {} +
    chmod 755 "$files"/bin/*
    find "$files" -exec touch --no-dereference --date="@$epoch" {} +
}

# A tree that can be unpacked into /usr/local.
archive() {
    tree=$CARGO_TARGET_DIR/$HOST/static/tree
    rm -rf "$tree"
    share=$tree/$name/share
    mkdir -p "$tree/$name/lib" "$share/man" "$share/bash-completion/completions" "$share/zsh/site-functions" \
        "$share/fish/vendor_completions.d" "$share/doc"
    cp -r "$files/bin" "$tree/$name/bin"
    cp -r "$files/lib" "$tree/$name/lib/beeline"
    cp -r "$files/man" "$share/man/man1"
    cp "$files/completions/beeline" "$share/bash-completion/completions"
    cp "$files/completions/_beeline" "$share/zsh/site-functions"
    cp "$files/completions/beeline.fish" "$share/fish/vendor_completions.d"
    cp -r "$files/doc" "$share/doc/beeline"
    cp -r "$files/examples" "$share/doc/beeline/examples"
    tar --create --directory "$tree" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
        --mode=go=rX,u+rw --format=ustar "$name" | gzip -9 --no-name >"$dist/$name.tar.gz"
}

packages() {
    "$tools/cargo-deb-$CARGO_DEB/bin/cargo-deb" --quiet --no-build --no-strip --no-dbgsym --package beeline \
        --target "$HOST" --profile static --output "$dist/"
    "$tools/cargo-generate-rpm-$CARGO_GENERATE_RPM/bin/cargo-generate-rpm" --package crates/cli \
        --target "$HOST" --profile static --auto-req disabled --output "$dist/"
}

main
