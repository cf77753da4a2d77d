#!/bin/sh
# A real Prometheus over guards in four network namespaces (root, about 3 minutes): crates/weir/tests/monitor_root.rs.
set -e
cd "$(dirname "$0")/.."
command -v prometheus >/dev/null || {
    echo 'skipped: monitor-test needs prometheus: apt-get install prometheus'
    exit 0
}
# The programs that the test has packets for.
"${CARGO:-cargo}" build -q -p weir-consumers
# shellcheck disable=SC2046
"${CARGO:-cargo}" test -p weir $(sh scripts/features.sh) --test monitor_root -- --ignored --nocapture
