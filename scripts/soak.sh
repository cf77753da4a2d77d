#!/bin/sh
# The long runs (root): all privileged tests at full length, stops of the guard, schedules of the simulated kernel, the
# fuzzer, and every experiment of the lab at its default size. Log and results go to docs/results, with the commit they are
# of. Four hours. Every step runs, also after one that failed; the last lines name those that did, and what was skipped.
cd "$(dirname "$0")/.." || exit 1
if [ "$(id -u)" != 0 ]; then
    echo "error: make soak needs root; run: sudo make soak" >&2
    exit 3
fi
for program in weir udp-sink hog echo probe screen tap web-workers web-clients sender; do
    [ -x "target/release/$program" ] && continue
    echo "error: target/release/$program is not there; run: sudo make soak, which builds it" >&2
    exit 3
done
# Stops of the guard at random moments under a flood, and seeded schedules of guard, keeper, undo and an administrator
# against the simulated kernel. make test runs both shortened.
stops=${WEIR_STOPS:-1000}
schedules=${WEIR_SCHEDULES:-10000000}
stops_test='-p weir --test guard stops'
schedules_test='-p weir-kern --test schedules'
fuzz_seconds=${WEIR_FUZZ_SECONDS:-600}
# Each takes what weir lab list says.
experiments=${WEIR_EXPERIMENTS-$(target/release/weir lab list | sed -n 's/^\([a-z][a-z-]*\) .*/\1/p')}

mkdir -p docs/results target
day=$(date -u +%Y-%m-%d)
log=docs/results/soak-$day.log
features=$(sh scripts/features.sh)
failed=
{
    echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(uname -sr), $(nproc) CPUs"
    echo "began $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} | tee "$log"

# step NAME COMMAND...: its output and its answer in the log; a pipe alone would hide the answer.
step() {
    name=$1
    shift
    begun=$(date +%s)
    echo "== $name: $*" | tee -a "$log"
    {
        "$@" </dev/null
        echo $? >target/soak.status
    } 2>&1 | tee -a "$log"
    answer=$(cat target/soak.status)
    took=$(($(date +%s) - begun))
    case $answer in
        0) echo "== $name: done after $took s" ;;
        3) echo "skipped: $name needs what its last line says" ;;
        *) echo "== $name: FAILED, code $answer, after $took s" ;;
    esac | tee -a "$log"
    case $answer in 0 | 3) ;; *) failed="$failed $name" ;; esac
}

# A test program that this tree has: one without it says so and goes on.
test_step() {
    name=$1
    program=${2##* }
    if ls crates/*/tests/"$program".rs >/dev/null 2>&1; then
        # shellcheck disable=SC2086
        step "$name" env WEIR_STOPS="$stops" WEIR_SCHEDULES="$schedules" \
            "${CARGO:-cargo}" test --release $2 $features -- --test-threads=1 --show-output
    else
        echo "skipped: $name needs the test $program" | tee -a "$log"
    fi
}

test_step schedules "$schedules_test"
test_step stops "$stops_test"
# shellcheck disable=SC2086
step tests env WEIR_SOAK=1 "${CARGO:-cargo}" test --release --workspace --no-fail-fast $features -- \
    _root --test-threads=1 --show-output
step fuzz sh scripts/fuzz.sh "$fuzz_seconds"
for experiment in $experiments; do
    step "$experiment" target/release/weir lab run "$experiment" --json "docs/results/$experiment-soak-$day.json"
done

{
    echo "ended $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    grep -a '^skipped: ' "$log" | sort -u
    for name in $failed; do echo "failed: $name"; done
    [ -n "$failed" ] || echo 'every step held'
} >target/soak.end
tee -a "$log" <target/soak.end
echo "log: $log; name it and the results in a document, or remove them (crates/weir/tests/tidy.rs)"
[ -z "$failed" ]
