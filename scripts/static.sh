#!/bin/sh
# Builds weir and weir-guard as static programs, with musl and with everything they link inside: target/static. It needs nothing of
# the system it runs on but a kernel. libelf and zlib, which Debian has for glibc only, are compiled from the sources that
# cargo has fetched with libbpf.
# STATIC_PROFILE: the profile of cargo, release by default.
# STATIC_MACHINE=aarch64 builds on another machine for that one, into target/static-aarch64, with GCC's cross compiler and the
# headers of its musl, which must lie in target/musl-aarch64 (scripts/vm-test.sh fetches them).
# STATIC_WHAT: what cargo builds, "-p weir --bins" by default; weir and weir-guard must be part of it.
set -e
cd "$(dirname "$0")/.."
machine=${STATIC_MACHINE:-$(uname -m)}
target=$machine-unknown-linux-musl
name=$(echo "$target" | tr - _)
profile=${STATIC_PROFILE:-release}
cargo=${CARGO:-cargo}
fail() {
    echo "error: $1" >&2
    exit 3
}
# Kernel headers come after those of musl, which has its own of the same names.
if [ "$machine" = "$(uname -m)" ]; then
    out=$PWD/target/static
    cc=musl-gcc headers="-idirafter /usr/include -idirafter /usr/include/$machine-linux-gnu" ar=ar strip=strip
    command -v $cc >/dev/null || fail 'no musl-gcc; apt-get install musl-tools'
else
    out=$PWD/target/static-$machine
    cc=$machine-linux-gnu-gcc ar=$machine-linux-gnu-ar strip=$machine-linux-gnu-strip
    command -v "$cc" >/dev/null || fail "no $cc; apt-get install gcc-$machine-linux-gnu"
    musl=$PWD/target/musl-$machine
    [ -e "$musl/stdio.h" ] || fail "no headers of musl in $musl"
    headers="-nostdinc -isystem $musl -isystem $($cc -print-file-name=include) -idirafter /usr/$machine-linux-gnu/include"
    # Rust's library has the atomic operations of musl targets inside.
    headers="$headers -mno-outline-atomics"
    export "CC_$name=$cc" "AR_$name=$ar" "CARGO_TARGET_$(echo "$name" | tr a-z A-Z)_LINKER=$cc"
fi
rustc --print target-libdir --target "$target" | xargs test -d ||
    fail "no standard library for $target; rustup target add $target"
command -v "${BPF_CLANG:-clang}" >/dev/null || fail 'no clang, and a weir without BPF programs is no guard; apt-get install clang'

# The place of libbpf's crate, which brings both libraries along.
"$cargo" fetch --locked --target "$target" >/dev/null 2>&1 || "$cargo" fetch --target "$target" >/dev/null
source=$("$cargo" metadata --format-version 1 --locked |
    sed 's/"manifest_path":"/\n/g' | sed -n 's|^\([^"]*/libbpf-sys-[^"/]*\)/Cargo.toml".*|\1|p' | head -n 1)
[ -d "$source/elfutils/libelf" ] && [ -d "$source/zlib" ] || fail "no sources of libelf and zlib in ${source:-the crate libbpf-sys}"

libraries=$out/${source##*/}
if [ ! -e "$libraries/complete" ]; then
    rm -rf "$libraries"
    mkdir -p "$libraries/elf" "$libraries/z" "$libraries/include"
    version=$(sed -n 's/^AC_INIT(\[elfutils\],\[\([0-9.]*\)\].*/\1/p' "$source/elfutils/configure.ac")
    # What configure would find out about musl.
    cat >"$libraries/elf/config.h" <<CONFIG
#define PACKAGE_NAME "elfutils"
#define PACKAGE_VERSION "${version:-0}"
#define HAVE_ERR_H 1
#define HAVE_DECL_MEMRCHR 1
#define HAVE_DECL_POWEROF2 1
#define HAVE_DECL_MEMPCPY 1
#define HAVE_DECL_REALLOCARRAY 1
#define HAVE_DECL_RAWMEMCHR 0
#include <eu-config.h>
CONFIG
    # A function that musl does not declare would be called with the wrong types.
    flags="-O2 -g0 -fPIC -D_GNU_SOURCE -DHAVE_UNISTD_H -DHAVE_STDARG_H -Werror=implicit-function-declaration"
    compile() {
        # shellcheck disable=SC2086
        (cd "$1" && shift && $cc $headers $flags "$@") >>"$libraries/log" 2>&1 ||
            fail "$cc failed: $(grep -m 1 error "$libraries/log"); see $libraries/log"
    }
    compile "$libraries/z" -c "$source"/zlib/*.c
    cp "$source"/zlib/zlib.h "$source"/zlib/zconf.h "$source"/elfutils/libelf/libelf.h \
        "$source"/elfutils/libelf/gelf.h "$source"/elfutils/libelf/elf.h "$libraries/include"
    compile "$libraries/elf" -DHAVE_CONFIG_H -I"$libraries/elf" -I"$source/elfutils/lib" \
        -I"$source/elfutils/libelf" -I"$libraries/include" -c "$source"/elfutils/libelf/*.c
    # The same inputs give the same archive.
    $ar rcsD "$libraries/libz.a" "$libraries"/z/*.o
    $ar rcsD "$libraries/libelf.a" "$libraries"/elf/*.o
    # The crate has the archives inside, and cargo does not know that they are new.
    "$cargo" clean -q -p libbpf-sys --target "$target" --profile "$profile" || true
    : >"$libraries/complete"
fi

# Paths of this machine would be in the program, and two machines would build two programs.
home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$PWD=/weir --remap-path-prefix=$home=/cargo"
export LIBBPF_SYS_EXTRA_CFLAGS="-I$libraries/include $headers -ffile-prefix-map=$source=/libbpf -g0"
export "CFLAGS_$name=$headers" "LIBBPF_SYS_LIBRARY_PATH_$name=$libraries"
# shellcheck disable=SC2086
"$cargo" build --locked ${STATIC_WHAT:--p weir --bins} --features weir/static --target "$target" --profile "$profile"
case $profile in
dev) built=target/$target/debug ;;
*) built=target/$target/$profile ;;
esac
# The release profile strips by itself, others do not.
install -s --strip-program="$strip" -m 755 "$built/weir" "$built/weir-guard" "$out"
guard=$(stat -c %s "$out/weir-guard")
[ "$profile" != release ] || [ "$machine" != x86_64 ] || [ "$guard" -le 4194304 ] ||
    fail "weir-guard has $guard bytes, more than the 4 MiB that docs/dependencies.md promises"
echo "built: ${out#"$PWD"/}/weir, $(stat -c %s "$out/weir") bytes, and weir-guard, $guard bytes"
