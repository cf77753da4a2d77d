#!/bin/sh
# Builds the Debian package out of what `make` has built (BUILD, target/release): target/deb/weir_VERSION_ARCH.deb.
# Needs dpkg-dev. The same tree gives the same bytes.
set -e
cd "$(dirname "$0")/.."
out=${1:-target/deb}
maintainer='weir developers <weir@weir.invalid>'
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
arch=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
doc=$root/usr/share/doc/weir
umask 022
sh scripts/stage.sh "$root"
command -v dpkg-shlibdeps >/dev/null || {
    echo "error: no dpkg-shlibdeps; apt-get install dpkg-dev" >&2
    exit 3
}

cp packaging/deb/copyright "$doc/copyright"
sed 's/^$/./; s/^/ /' LICENSE-MIT >>"$doc/copyright"
rm "$doc/LICENSE-MIT" "$doc/LICENSE-APACHE" "$doc/LICENSE-uPlot"
printf 'weir (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -uR -d "@$SOURCE_DATE_EPOCH")" >"$doc/changelog"
install -D -m 644 packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/weir"
gzip -9n "$doc/changelog"

# Which libraries, and since which version, by the symbols that are used.
mkdir "$work/debian"
printf 'Source: weir\n\nPackage: weir\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info \
    root/usr/bin/weir root/usr/lib/weir/weir-guard root/usr/lib/weir/udp-sink root/usr/lib/weir/hog root/usr/lib/weir/echo root/usr/lib/weir/probe root/usr/lib/weir/screen root/usr/lib/weir/tap root/usr/lib/weir/web-workers root/usr/lib/weir/web-clients root/usr/lib/weir/sender 2>/dev/null |
    sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || {
    echo "error: dpkg-shlibdeps does not know the libraries of weir; run it by hand to see why" >&2
    exit 1
}

mkdir "$root/DEBIAN"
for script in postinst prerm postrm; do
    install -m 755 packaging/deb/$script "$root/DEBIAN/$script"
done
echo /etc/weir/weir.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<CONTROL
Package: weir
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -k -s --apparent-size "$root" | cut -f1)
Depends: $depends
Suggests: nsd, dnsperf
Section: net
Priority: optional
Homepage: https://weir.invalid/weir
Description: receive scheduler: keeps a host working when packets arrive too fast
 A host that receives more packets than it can handle does nothing else any
 more: receive livelock. weir polls the flooded queue in small turns, gives
 packet work a limited share of the CPU, and leaves in the NIC what no program
 could read. It runs on stock kernels, from user space and eBPF, with unmodified
 programs, and puts back every setting it changed.
 .
 This package has the program, a service per interface (weir-guard@IF), and the
 lab that shows collapse and cure on this kernel in network namespaces.
CONTROL
(cd "$root" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)

mkdir -p "$out"
package=$out/weir_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "built: $package; next: sudo dpkg -i $package"
