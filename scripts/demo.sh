#!/bin/sh
# Two minutes on this kernel: collapse and cure, without and with a hog. Writes report.html and report.json.
# Exit codes are those of weir: 1 a claim falls short, 3 a privilege is missing.
weir=target/release/weir
if [ "$(id -u)" != 0 ]; then
    echo "make demo needs root for network namespaces: sudo sh scripts/demo.sh" >&2
fi
$weir lab run livelock-udp --quick --hogs 0,1 --json report.json --html report.html
code=$?
case $code in
0 | 1) echo "look at report.html; on a real host: sudo $weir guard eth0, and Ctrl-C puts everything back" ;;
esac
exit $code
