#!/bin/sh
# The package in a clean Debian (root): makes the Debian once under target/, then runs crates/weir/tests/package_root.rs.
set -e
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
root=$PWD/target/debian-root
name=the_package_comes_guards_and_goes_root
skip() {
    echo "skipped: $name needs $1"
    exit 0
}
[ "$(id -u)" = 0 ] || skip root
command -v debootstrap >/dev/null || skip 'debootstrap: apt-get install debootstrap'
command -v systemd-nspawn >/dev/null || skip 'systemd-nspawn: apt-get install systemd-container'
if [ ! -e "$root/complete" ]; then
    rm -rf "$root"
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,libelf1 "$release" "$root" \
        ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >target/debootstrap.log 2>&1 ||
        skip "a Debian mirror; see target/debootstrap.log, or give DEBIAN_MIRROR"
    : >"$root/complete"
fi
package=$(ls -t target/deb/weir_*.deb | head -n 1)
if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning "$package"
    echo "lintian: no error and no warning in $package"
else
    echo 'skipped: lintian needs lintian: apt-get install lintian'
fi
WEIR_DEB=$PWD/$package WEIR_DEBIAN=$root "${CARGO:-cargo}" test --release -p weir $(sh scripts/features.sh) --test package_root -- --ignored --nocapture
