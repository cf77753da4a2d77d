#!/bin/sh
# Two minutes on this kernel, seconds in the simulator: collapse and cure, without and with a hog. Writes report.html
# and report.json.
# Exit codes are those of weir: 1 a claim falls short, 3 a privilege is missing.
weir=target/release/weir
backend=kernel
if [ "$(id -u)" != 0 ]; then
    echo "no root: this demo runs in the simulator; on this kernel: sudo sh scripts/demo.sh" >&2
    backend=sim
fi
$weir lab run livelock-udp --backend $backend --quick --hogs 0,1 --json report.json --html report.html
code=$?
case $code in
0 | 1) echo "look at report.html; on a real host: sudo $weir guard eth0, and Ctrl-C puts everything back" ;;
esac
exit $code
