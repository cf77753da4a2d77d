#!/bin/sh
# The long runs (root): privileged tests at full length, then every experiment at its default size. The log and the
# results go to docs/results. Takes about an hour.
if [ "$(id -u)" != 0 ]; then
    echo "error: make soak needs root; run: sudo sh scripts/soak.sh" >&2
    exit 3
fi
mkdir -p docs/results
day=$(date -u +%Y-%m-%d)
log=docs/results/soak-$day.log
: >"$log"
status=0

step() {
    echo "== $*" | tee -a "$log"
    { "$@" || echo "failed: $*"; } 2>&1 | tee -a "$log"
}

# shellcheck disable=SC2046
step env WEIR_SOAK=1 "${CARGO:-cargo}" test --release --workspace --no-fail-fast $(sh scripts/features.sh) -- \
    _root --test-threads=1 --show-output
step sh scripts/fuzz.sh 600
for experiment in livelock-udp below-saturation onset; do
    step target/release/weir lab run $experiment \
        --json "docs/results/$experiment-$day.json" --html "docs/results/$experiment-$day.html"
done
grep -a '^failed: ' "$log" && status=1
exit $status
