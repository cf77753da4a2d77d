#!/bin/sh
# Makes a small Debian with systemd once, under target/debian-root, for the tests of packages (root). DEBIAN_MIRROR: where from.
# Exit code 1, and the reason on standard output, if it cannot be had.
set -e
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
root=$PWD/target/debian-root
[ ! -e "$root/complete" ] || exit 0
missing() {
    echo "$1"
    exit 1
}
command -v debootstrap >/dev/null || missing 'debootstrap: apt-get install debootstrap'
rm -rf "$root"
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,libelf1 "$release" "$root" \
    ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >target/debootstrap.log 2>&1 ||
    missing "a Debian mirror; see target/debootstrap.log, or give DEBIAN_MIRROR"
: >"$root/complete"
