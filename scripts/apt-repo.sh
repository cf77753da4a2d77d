#!/bin/sh
# Puts the newest package of target/deb into a repository for apt: target/apt, to be served by any web server or as files.
# Needs dpkg-dev. It is not signed: sign dists/stable/Release, or say trusted=yes where it is used. The same package gives
# the same bytes.
set -e
cd "$(dirname "$0")/.."
out=${1:-target/apt}
command -v dpkg-scanpackages >/dev/null || {
    echo "error: no dpkg-scanpackages; apt-get install dpkg-dev" >&2
    exit 3
}
package=$(ls -t target/deb/weir_*.deb 2>/dev/null | head -n 1)
[ -n "$package" ] || {
    echo "error: no package in target/deb; make deb" >&2
    exit 2
}
arch=$(dpkg-deb --field "$package" Architecture)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
lists=dists/stable/main/binary-$arch
rm -rf "$out"
mkdir -p "$out/pool/main/w/weir" "$out/$lists"
cp "$package" "$out/pool/main/w/weir/"
cd "$out"
dpkg-scanpackages --arch "$arch" pool 2>/dev/null >"$lists/Packages"
gzip -9nk "$lists/Packages"
{
    printf 'Origin: weir\nLabel: weir\nSuite: stable\nCodename: stable\nComponents: main\nArchitectures: %s\n' "$arch"
    printf 'Date: %s\nSHA256:\n' "$(date -uR -d "@$epoch" | sed 's/+0000/UTC/')"
    for list in "main/binary-$arch/Packages" "main/binary-$arch/Packages.gz"; do
        file=dists/stable/$list
        printf ' %s %s %s\n' "$(sha256sum "$file" | cut -d' ' -f1)" "$(stat -c %s "$file")" "$list"
    done
} >dists/stable/Release
echo "built: $out; use it: echo 'deb [trusted=yes] file:$PWD stable main' > /etc/apt/sources.list.d/weir.list"
