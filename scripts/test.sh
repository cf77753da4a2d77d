#!/bin/sh
# Runs every test of the workspace that this machine can run, then names those that were skipped.
features=$(sh scripts/features.sh)
mkdir -p target
# All programs first: the tests of one package run programs of another.
# shellcheck disable=SC2086
"${CARGO:-cargo}" build --workspace $features || exit
# The pipe would hide cargo's answer, so it goes through a file.
{
    # shellcheck disable=SC2086
    "${CARGO:-cargo}" test --workspace --no-fail-fast $features -- --show-output
    echo $? >target/test.status
} 2>&1 | tee target/test.log
skipped=$(grep -a '^skipped: ' target/test.log | sort -u)
echo
if [ -n "$skipped" ]; then
    echo "$(echo "$skipped" | wc -l) tests were skipped:"
    echo "$skipped"
else
    echo "no test was skipped"
fi
[ -z "$features" ] || echo "built without BPF programs: nothing that needs them was tested (make deps)"
exit "$(cat target/test.status)"
