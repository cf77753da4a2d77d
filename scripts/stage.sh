#!/bin/sh
# Puts what both packages have into a directory: stage.sh DIR, out of what `make` has built (BUILD, target/release).
set -e
cd "$(dirname "$0")/.."
root=$1
umask 022
# The program of a package that others install has its BPF programs.
[ -z "$(sh scripts/features.sh)" ] || {
    echo "error: no package without BPF programs, which a guard needs; make deps says what they are built with" >&2
    exit 3
}
PREFIX=/usr SYSCONFDIR=/etc DESTDIR=$root sh scripts/install.sh >/dev/null
XTASK=${BUILD:-target/release}/xtask sh scripts/sbom.sh "$root/usr/share/doc/weir" >/dev/null
gzip -9n "$root"/usr/share/man/man1/*.1
