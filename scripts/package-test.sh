#!/bin/sh
# The package in a clean Debian (root): makes the Debian once under target/, an apt repository with two versions of the package,
# then runs crates/weir/tests/package_root.rs. The two are this package and itself under the next version; with OLD_DEB=FILE, that
# older package, under a version before this one's, and this one.
set -e
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
root=$PWD/target/debian-root
name=the_package_comes_guards_and_goes_root
skip() {
    echo "skipped: $name needs $1"
    exit 0
}
[ "$(id -u)" = 0 ] || skip "root: sudo env PATH=\"\$PATH\" HOME=\"\$HOME\" make package-test"
command -v systemd-nspawn >/dev/null || skip 'systemd-nspawn: apt-get install systemd-container'
command -v apt-ftparchive >/dev/null || skip 'apt-ftparchive: apt-get install apt-utils'
why=$(sh scripts/debian-root.sh) || skip "$why"
package=$(ls -t target/deb/weir_*.deb | head -n 1)
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning "$package"
    echo "lintian: no error and no warning in $package"
else
    echo 'skipped: lintian needs lintian: apt-get install lintian'
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A shell that is ended by a signal does not come to the line above.
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work/packages"
cp "$package" "$work/packages"
version=$(dpkg-deb -f "$package" Version)
# A package under another version, to be upgraded to, or from, and gone back.
other() {
    dpkg-deb -R "$1" "$work/other"
    sed -i "s/^Version: .*/Version: $2/" "$work/other/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$work/other" "$work/packages/weir_$2_$(dpkg --print-architecture).deb" >/dev/null
}
if [ -n "${OLD_DEB:-}" ]; then
    other "$OLD_DEB" "$version~old"
else
    other "$package" "$version+next"
fi
# Signed with a key of this run, where gpg is there: a host that checks signatures takes it too.
if command -v gpg >/dev/null; then
    export GNUPGHOME="$work/keys" APT_KEY=weir@weir.invalid
    mkdir -m 700 "$GNUPGHOME"
    gpg --batch --quiet --pinentry-mode loopback --passphrase '' --quick-generate-key "$APT_KEY" 2>"$work/gpg.log" || {
        cat "$work/gpg.log" >&2
        exit 1
    }
fi
# What it says is for a host.
sh scripts/apt-repo.sh "$work/packages" "$work/apt" >/dev/null
[ -z "${GNUPGHOME:-}" ] || gpgconf --kill gpg-agent || true

WEIR_APT=$work/apt WEIR_DEBIAN=$root "${CARGO:-cargo}" test --release -p weir $(sh scripts/features.sh) --test package_root -- --ignored --nocapture
