#!/bin/sh
# Builds the OCI image out of the static programs (target/static/weir, or WEIR, and weir-guard beside it), from scratch, with
# nothing else in it: target/image/weir-VERSION-ARCH.oci.tar. Needs buildah, and no daemon. The same programs give the same bytes.
# What the programs are made of is written beside it: scripts/sbom.sh.
set -e
cd "$(dirname "$0")/.."
program=${WEIR:-target/static/weir}
out=${1:-target/image}
fail() {
    echo "error: $1" >&2
    exit 3
}
command -v buildah >/dev/null || fail 'no buildah; apt-get install buildah'
guard=$(dirname "$program")/weir-guard
for file in "$program" "$guard"; do
    [ -x "$file" ] || fail "$file is not there; make static"
    # A program that asks for libraries would find none in there.
    ! asks=$(readelf -l "$file" 2>/dev/null | grep -o 'Requesting program interpreter: [^]]*') ||
        fail "$file is not static (${asks##*: }); make static"
done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) arch=$(uname -m) ;;
esac
# The moment that every file and the image carry.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}

# A store of its own: nothing is left among the images of this machine.
work=$(mktemp -d)
with() {
    buildah --root "$work/root" --runroot "$work/run" --storage-driver vfs "$@"
}
container=
# shellcheck disable=SC2317
clean() {
    [ -z "$container" ] || with rm "$container" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM

install -m 755 "$program" "$work/weir"
install -m 755 "$guard" "$work/weir-guard"
touch -d "@$epoch" "$work/weir" "$work/weir-guard"
container=$(with from scratch)
with copy --quiet --chown 0:0 --chmod 755 "$container" "$work/weir" "$work/weir-guard" / >/dev/null
with config --arch "$arch" --os linux --entrypoint '["/weir"]' --workingdir / \
    --label "org.opencontainers.image.title=weir" \
    --label "org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.licenses=MIT OR Apache-2.0" \
    --label "org.opencontainers.image.description=receive scheduler: keeps a host working when packets arrive too fast" \
    "$container"
with commit --quiet --timestamp "$epoch" --omit-history --format oci "$container" "oci:$work/layout:weir:$version" >/dev/null
mkdir -p "$out"
echo "writing the bill of materials: compiles a tool, some minutes"
sh scripts/sbom.sh "$out"
image=$out/weir-$version-$arch.oci.tar
# Sorted, of one owner and one moment: the archive is the same too.
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar \
    -C "$work/layout" -cf "$image" .
echo "built: $image, $(stat -c %s "$image") bytes, sha256 $(sha256sum "$image" | cut -c1-16)..."
