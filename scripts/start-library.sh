#!/bin/sh
# start-library.sh DIRECTORY: builds libbeeline_start.so and libbeeline_start.a and puts them there. The bytes depend on
# the source and the compiler only.
set -eu

main() {
    mkdir -p "$1"
    directory=$(cd "$1" && pwd)
    cd "$(dirname "$0")/../packaging/start"
    work=$(mktemp -d "$directory/start.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    # A program that is preloaded into may have any C library and any compiler's runtime, so this needs neither.
    ${CC:-cc} -std=gnu11 -Wall -Wextra -Werror -Os -fPIC -fvisibility=hidden -fno-stack-protector \
        -fno-asynchronous-unwind-tables -fcf-protection=none -ffile-prefix-map="$PWD=." \
        -c beeline_start.c -o "$work/beeline_start.o"
    # Unloaded, it would leave its handler of fork(2) behind.
    ${CC:-cc} -shared -nostdlib -Wl,-soname,libbeeline_start.so -Wl,-z,nodelete,-z,now,-z,relro,-z,noexecstack,-z,noseparate-code \
        -Wl,--build-id=none -Wl,--hash-style=both -s "$work/beeline_start.o" -o "$work/libbeeline_start.so"
    ${AR:-ar} rcD "$work/libbeeline_start.a" "$work/beeline_start.o"
    # Put there whole: programs may be loading what is there.
    mv "$work/libbeeline_start.so" "$work/libbeeline_start.a" "$directory"
}

main "$@"
