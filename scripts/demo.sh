#!/bin/sh
# Some minutes on this kernel, seconds in the simulator: collapse and cure, without and with a hog. Writes report.html
# and report.json.
# A claim that falls short is said and is no failure of the demo: two trials each, on a machine that may have other work.
# Exit codes: 0 curves were drawn; others as of weir lab run: 3 if something is lacking, such as idle CPUs.
weir=target/release/weir
backend=kernel
if [ "$(id -u)" != 0 ]; then
    echo "no root: this demo runs in the simulator; on this kernel: sudo sh scripts/demo.sh" >&2
    backend=sim
fi
$weir lab run livelock-udp --backend $backend --quick --hogs 0,1 --json report.json --html report.html
code=$?
case $code in
1)
    echo "a claim falls short here, see above: with two trials each, other work on this machine can be the reason. Run it"
    echo "again in peace, or longer: $weir lab run livelock-udp --backend $backend"
    ;;
0) ;;
*) exit $code ;;
esac
echo "look at report.html; on a real host: sudo $weir guard eth0, and Ctrl-C puts everything back"
