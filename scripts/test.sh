#!/bin/sh
# Runs every test of the workspace that this machine can run, then names those that were skipped and the test programs
# that took longest. A few failed tests are run again, alone, at most twice: others on a shared machine can spoil rates
# and deadlines. Those that needed it are named loudly and stay in target/test.again, which .ci/run shows at its end.
# Tests of crates that know no time but virtual time have one try.
features=$(sh scripts/features.sh)
log=target/test.log
timeless='^-p weir-(policy|results|sim|see|model) '
mkdir -p target
# All programs first: the tests of one package run programs of another. With the tests, since what these need changes what the
# programs are built of: alone they would be built twice.
# shellcheck disable=SC2086
"${CARGO:-cargo}" build --workspace --lib --bins --examples --tests $features || exit

# cargo test ARGUMENTS, its words in $log and its answer in $status; a pipe alone would hide the answer.
run() {
    {
        # shellcheck disable=SC2086
        "${CARGO:-cargo}" test --no-fail-fast $features "$@" --show-output </dev/null
        echo $? >target/test.status
    } 2>&1 | tee -a "$log"
    status=$(cat target/test.status)
}

# The arguments that run each failed test of $log again; a line that ends with ! for a target that failed otherwise. A program
# that time can spoil is named within the workspace: for one package alone cargo would compile what it depends on anew.
failed() {
    awk -v timeless="$timeless" '
        /^test .* \.\.\. FAILED$/ { names[++n] = $2 }
        /^error: test failed, to rerun pass/ {
            split($0, words, "`")
            if (words[2] !~ timeless && words[2] ~ / --test /) sub(/^-p [^ ]+/, "--workspace", words[2])
            if (n == 0) print words[2], "!"
            for (; n > 0; n--) print words[2], "-- --exact", names[n]
        }
    ' "$log"
}

# Where the tests that failed in $log did so, and the first line of what they said. A test that passed may have had a panic too.
reasons() {
    awk '
        /^test .* \.\.\. FAILED$/ { failed["\047" $2 "\047"] = 1 }
        /^thread .* panicked at / { thread = $2; at = $NF; getline said; of[thread] = of[thread] "\n" at " " substr(said, 1, 160) }
        END { for (thread in of) if (thread in failed) print thread of[thread] }
    ' "$log" | awk '!seen[$0]++' | head -n 24
}

# The eight test programs of $1 that took longest, in seconds.
slowest() {
    awk '
        /^ +Running / { name = $2 == "unittests" ? $3 " " $4 : $2 " " $3 }
        /^ +Doc-tests / { name = "doc-tests " $2 }
        /^test result: .* finished in / { took = $NF; sub(/s$/, "", took); printf "%7.1f s  %s\n", took, name }
    ' "$1" | sort -rn | head -n 8
}

: >"$log"
rm -f target/test.again
run --workspace --
cp "$log" target/test.all
again=$(failed)
reasons=$(reasons)
for try in 2 3; do
    [ "$status" -ne 0 ] || break
    list=$(failed)
    [ -n "$list" ] && [ "$(echo "$list" | wc -l)" -le 5 ] && ! echo "$list" | grep -qE -e "$timeless" -e '!$' || break
    : >"$log"
    result=0
    while read -r arguments; do
        echo "try $try: $arguments"
        # shellcheck disable=SC2086
        run $arguments
        [ "$status" -eq 0 ] || result=$status
    done <<END
$list
END
    status=$result
    cat "$log" >>target/test.all
done
mv target/test.all "$log"

echo
skipped=$(grep -a '^skipped: ' "$log" | sort -u)
if [ -n "$skipped" ]; then
    echo "$(echo "$skipped" | wc -l) tests were skipped:"
    echo "$skipped"
else
    echo "no test was skipped"
fi
echo "the slowest test programs:"
slowest "$log"
if [ -n "$again" ]; then
    {
        echo "!!! $(echo "$again" | wc -l) tests FAILED AT FIRST; one that needs another try often is to be repaired:"
        echo "$again" | sed 's/^/!!!   /'
        echo "!!! what they said then:"
        printf '%s\n' "$reasons" | sed 's/^/!!!   /'
        if [ "$status" -eq 0 ]; then
            echo "!!! all of them passed when run again"
        else
            echo "!!! not all of them passed when run again"
        fi
    } | tee target/test.again
fi
[ -z "$features" ] || echo "built without BPF programs: nothing that needs them was tested (make deps)"
exit "$status"
