#!/bin/sh
# Some minutes on this kernel, seconds in the simulator: collapse and cure, without and with a hog. Writes report.html
# and report.json.
# BUSY=1: on a machine whose CPUs are not idle too, where other work spoils points.
# A claim that falls short is said and is no failure of the demo: two trials each, on a machine that may have other work.
# Exit codes: 0 curves were drawn, whatever the claims; others as of weir lab run: 3 if something is lacking, such as idle CPUs.
build=${BUILD:-${CARGO_TARGET_DIR:-target}/release}
weir=$build/weir
backend=kernel
if [ "$(id -u)" != 0 ]; then
    # sudo does not hand the variables on.
    at=
    [ "$build" = target/release ] || at="BUILD=$build "
    [ -z "$BUSY" ] || at="${at}BUSY=1 "
    echo "no root: this demo runs in the simulator; on this kernel: sudo ${at}sh scripts/demo.sh" >&2
    backend=sim
fi
if [ ! -x "$weir" ]; then
    echo "error: $weir is not there; make builds it" >&2
    exit 2
fi
# A report of an earlier run is older than this.
start=$(mktemp ./.demo.XXXXXX) || exit 1
trap 'rm -f "$start"' EXIT
run="$weir lab run livelock-udp --backend $backend${BUSY:+ --busy}"
$run --quick --hogs 0,1 --json report.json --html report.html
code=$?
[ $code != 3 ] || [ -n "$BUSY" ] ||
    echo "if CPUs are not idle, this runs it all the same: ${SUDO_USER:+sudo env }BUILD=$build BUSY=1 sh scripts/demo.sh" >&2
if [ ! report.html -nt "$start" ]; then
    echo "nothing was written: the run ended before it had a result, see above" >&2
    [ $code != 0 ] || code=1
    exit $code
fi
case $code in
0) ;;
1)
    echo "a claim falls short here or could not be measured, see above: with two trials each, other work on this machine can"
    echo "be the reason. Run it again in peace, or longer: ${SUDO_USER:+sudo }$run --html report.html"
    ;;
*)
    echo "the run failed, see above; report.html has what it measured" >&2
    exit $code
    ;;
esac
echo "look at report.html; on a real host: sudo $weir guard eth0, and Ctrl-C puts everything back"
