#!/bin/sh
# The image: built twice to the same bytes, then run in podman on devices of the test (root): crates/weir/tests/image_root.rs.
set -e
cd "$(dirname "$0")/.."
command -v buildah >/dev/null || {
    echo 'skipped: image-test needs buildah: apt-get install buildah'
    exit 0
}
again=$(mktemp -d)
# Control groups of podman stay after its containers; those that others use are not empty, and stay.
trap 'rm -rf "$again"; find /sys/fs/cgroup -maxdepth 3 -depth -path "*/libpod_parent*" -type d -exec rmdir {} + 2>/dev/null || true' EXIT
sh scripts/image.sh
sh scripts/image.sh "$again" >/dev/null
image=$(ls -t target/image/weir-*.oci.tar | head -n 1)
cmp "$image" "$again/${image##*/}"
for program in weir weir-guard; do
    cmp "target/image/$program.cdx.json" "$again/$program.cdx.json"
done
echo "built twice: the same $(stat -c %s "$image") bytes"
# Nothing but the programs.
layer=$(tar -xOf "$image" ./index.json | sed 's/.*"sha256:\([0-9a-f]*\)".*/\1/')
layer=$(tar -xOf "$image" "./blobs/sha256/$layer" | tr '{' '\n' | sed -n 's/.*image.layer.*"sha256:\([0-9a-f]*\)".*/\1/p')
files=$(tar -xOf "$image" "./blobs/sha256/$layer" | tar -tf - | sort | xargs)
[ "$files" = 'weir weir-guard' ] || {
    echo "error: the image has not these two programs alone, but: $files" >&2
    exit 1
}
# The programs that the test has packets for.
"${CARGO:-cargo}" build -q -p weir-consumers
# shellcheck disable=SC2046
WEIR_IMAGE=$PWD/$image "${CARGO:-cargo}" test -p weir $(sh scripts/features.sh) --test image_root -- --ignored --nocapture --test-threads 1
