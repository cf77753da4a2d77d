#!/bin/sh
# Coverage-guided fuzzing of the frame parser, crates/policy/src/c/classify.h, with libFuzzer and AddressSanitizer.
# Usage: fuzz.sh [SECONDS], default 120. Needs clang and its runtime libraries. Exit code 1 and the input if it finds a fault.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-120}
clang=${BPF_CLANG:-clang}
out=target/fuzz
mkdir -p $out/corpus
if ! "$clang" -g -O1 -Wall -Wextra -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    crates/policy/src/c/classify_fuzz.c -o $out/classify; then
    echo "skipped: fuzzing needs clang and libclang-rt-dev of the same version" >&2
    exit 3
fi
# Seeds: an empty table before ARP, UDP over IPv4 in a VLAN, and TCP over IPv6 behind an extension header.
mac='\002\000\000\000\000\001\002\000\000\000\000\002'
printf '\000\000'"$mac"'\010\006' >$out/corpus/arp
printf '\000\000'"$mac"'\201\000\000\007\010\000\105\000\000\034\000\001\000\000\100\021\000\000\012\000\000\001\012\000\000\002\000\065\043\050\000\010\000\000' >$out/corpus/udp
printf '\000\000'"$mac"'\206\335\140\000\000\000\000\034\000\100\040\001\015\270\000\000\000\000\000\000\000\000\000\000\000\001\040\001\015\270\000\000\000\000\000\000\000\000\000\000\000\002\006\000\000\000\000\000\000\000\000\026\043\050\000\000\000\001\000\000\000\001\120\020\000\000\000\000\000\000' >$out/corpus/tcp
exec $out/classify -max_total_time="$seconds" -max_len=4400 -print_final_stats=1 -verbosity=0 -artifact_prefix=$out/fault- $out/corpus
