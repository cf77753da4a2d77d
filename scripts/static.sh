#!/bin/sh
# Builds weir and weir-guard as static programs, with musl and with everything they link inside: target/static. It needs nothing of
# the system it runs on but a kernel. libelf and zlib, which Debian has for glibc only, are compiled from the sources that
# cargo has fetched with libbpf.
# STATIC_PROFILE: the profile of cargo, release by default.
set -e
cd "$(dirname "$0")/.."
machine=$(uname -m)
target=$machine-unknown-linux-musl
profile=${STATIC_PROFILE:-release}
out=$PWD/target/static
cargo=${CARGO:-cargo}
fail() {
    echo "error: $1" >&2
    exit 3
}
command -v musl-gcc >/dev/null || fail 'no musl-gcc; apt-get install musl-tools'
rustc --print target-libdir --target "$target" | xargs test -d ||
    fail "no standard library for $target; rustup target add $target"
command -v "${BPF_CLANG:-clang}" >/dev/null || fail 'no clang, and a weir without BPF programs is no guard; apt-get install clang'

# The place of libbpf's crate, which brings both libraries along.
"$cargo" fetch --locked --target "$target" >/dev/null 2>&1 || "$cargo" fetch --target "$target" >/dev/null
source=$("$cargo" metadata --format-version 1 --locked |
    sed 's/"manifest_path":"/\n/g' | sed -n 's|^\([^"]*/libbpf-sys-[^"/]*\)/Cargo.toml".*|\1|p' | head -n 1)
[ -d "$source/elfutils/libelf" ] && [ -d "$source/zlib" ] || fail "no sources of libelf and zlib in ${source:-the crate libbpf-sys}"

# Kernel headers come after those of musl, which has its own of the same names.
kernel="-idirafter /usr/include -idirafter /usr/include/$machine-linux-gnu"
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
        (cd "$1" && shift && musl-gcc $flags "$@") >>"$libraries/log" 2>&1 ||
            fail "musl-gcc failed: $(grep -m 1 error "$libraries/log"); see $libraries/log"
    }
    compile "$libraries/z" -c "$source"/zlib/*.c
    cp "$source"/zlib/zlib.h "$source"/zlib/zconf.h "$source"/elfutils/libelf/libelf.h \
        "$source"/elfutils/libelf/gelf.h "$source"/elfutils/libelf/elf.h "$libraries/include"
    compile "$libraries/elf" -DHAVE_CONFIG_H -I"$libraries/elf" -I"$source/elfutils/lib" \
        -I"$source/elfutils/libelf" -I"$libraries/include" -c "$source"/elfutils/libelf/*.c
    # The same inputs give the same archive.
    ar rcsD "$libraries/libz.a" "$libraries"/z/*.o
    ar rcsD "$libraries/libelf.a" "$libraries"/elf/*.o
    # The crate has the archives inside, and cargo does not know that they are new.
    "$cargo" clean -q -p libbpf-sys --target "$target" --profile "$profile" || true
    : >"$libraries/complete"
fi

# Paths of this machine would be in the program, and two machines would build two programs.
home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$PWD=/weir --remap-path-prefix=$home=/cargo"
export LIBBPF_SYS_EXTRA_CFLAGS="-I$libraries/include $kernel -ffile-prefix-map=$source=/libbpf -g0"
export "CFLAGS_$(echo "$target" | tr - _)=$kernel"
export "LIBBPF_SYS_LIBRARY_PATH_$(echo "$target" | tr - _)=$libraries"
"$cargo" build --locked -p weir --bins --features static --target "$target" --profile "$profile"
case $profile in
dev) built=target/$target/debug ;;
*) built=target/$target/$profile ;;
esac
# The release profile strips by itself, others do not.
install -s -m 755 "$built/weir" "$built/weir-guard" "$out"
echo "built: target/static/weir, $(stat -c %s "$out/weir") bytes, and weir-guard, $(stat -c %s "$out/weir-guard") bytes"
