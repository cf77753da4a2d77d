#!/bin/sh
# The DaemonSet's pod, started by podman from the image that was built last (root): crates/weir/tests/kube_root.rs.
set -e
cd "$(dirname "$0")/.."
image=$(ls -t target/image/weir-*.oci.tar | head -n 1)
# The programs that the test has packets for.
"${CARGO:-cargo}" build -q -p weir-consumers
# shellcheck disable=SC2046
WEIR_IMAGE=$PWD/$image "${CARGO:-cargo}" test -p weir $(sh scripts/features.sh) --test kube_root -- --ignored --nocapture
