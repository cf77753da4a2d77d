#!/bin/sh
# Builds an apt repository of the packages that `make deb` has built: target/apt, which any web server can serve, or a directory
# that hosts mount. Needs apt-ftparchive (Debian's apt-utils). The same packages give the same index.
# Usage: apt-repo.sh [PACKAGES [OUT]]. APT_KEY: a key of gpg that signs it; without one, hosts have to be told to trust it.
set -e
cd "$(dirname "$0")/.."
packages=${1:-target/deb}
out=${2:-target/apt}
fail() {
    echo "error: $1" >&2
    exit 3
}
command -v apt-ftparchive >/dev/null || fail 'no apt-ftparchive; apt-get install apt-utils'
ls "$packages"/weir_*.deb >/dev/null 2>&1 || fail "no package in $packages; make deb"
# The newest change of what it has inside.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}

rm -rf "$out"
mkdir -p "$out/pool"
cp "$packages"/weir_*.deb "$out/pool"
cd "$out"
architectures=$(for package in pool/*.deb; do dpkg-deb -f "$package" Architecture; done | sort -u | tr '\n' ' ')
for architecture in $architectures; do
    index=dists/stable/main/binary-$architecture
    mkdir -p "$index"
    apt-ftparchive --arch "$architecture" packages pool >"$index/Packages"
    gzip -9nk "$index/Packages"
done
apt-ftparchive -o APT::FTPArchive::Release::Origin=weir -o APT::FTPArchive::Release::Label=weir \
    -o APT::FTPArchive::Release::Suite=stable -o APT::FTPArchive::Release::Codename=stable \
    -o APT::FTPArchive::Release::Components=main \
    -o "APT::FTPArchive::Release::Architectures=${architectures% }" release dists/stable |
    sed "s/^Date: .*/Date: $(LC_ALL=C date -uR -d "@$epoch")/" >"Release.new"
mv Release.new dists/stable/Release
if [ -n "${APT_KEY:-}" ]; then
    gpg --batch --yes --local-user "$APT_KEY" --clearsign --output dists/stable/InRelease dists/stable/Release
    gpg --batch --yes --export "$APT_KEY" >weir.gpg
    trust=signed-by=/etc/apt/keyrings/weir.gpg
else
    trust=trusted=yes
fi
echo "built: $out, $(ls pool | wc -l) packages; on a host:"
echo "  echo 'deb [$trust] file:$PWD stable main' | sudo tee /etc/apt/sources.list.d/weir.list"
echo '  sudo apt update && sudo apt install weir'
