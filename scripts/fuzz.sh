#!/bin/sh
# Coverage-guided fuzzing with libFuzzer of everything that reads what others have written.
# Usage: fuzz.sh [SECONDS [INPUT...]]: so long each, default 120, of these inputs, default all:
#   frames    crates/policy/src/c/classify.h, the parser in the packet path, with AddressSanitizer
#   journal   files in /run/weir, which the guard, its keeper and weir undo trust with settings of the kernel
#   keeper    messages to the keeper
#   config    the configuration file
#   http      requests to weir watch --web and --metrics
#   procfs    files of procfs, and replies of netlink
# Needs clang and its runtime libraries, and libstdc++. Exit code 1 and the input if it finds a fault.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-120}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- frames journal keeper config http procfs
clang=${BPF_CLANG:-clang}
out=$PWD/target/fuzz
skip() {
    echo "skipped: fuzzing needs clang and libclang-rt-dev of the same version, and libstdc++" >&2
    exit 3
}

frames() {
    "$clang" -g -O1 -Wall -Wextra -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
        crates/policy/src/c/classify_fuzz.c -o "$out/frames" || skip
    # Seeds: an empty table before ARP, UDP over IPv4 in a VLAN, and TCP over IPv6 behind an extension header.
    mac='\002\000\000\000\000\001\002\000\000\000\000\002'
    printf '\000\000'"$mac"'\010\006' >"$1/arp"
    printf '\000\000'"$mac"'\201\000\000\007\010\000\105\000\000\034\000\001\000\000\100\021\000\000\012\000\000\001\012\000\000\002\000\065\043\050\000\010\000\000' >"$1/udp"
    printf '\000\000'"$mac"'\206\335\140\000\000\000\000\034\000\100\040\001\015\270\000\000\000\000\000\000\000\000\000\000\000\001\040\001\015\270\000\000\000\000\000\000\000\000\000\000\000\002\006\000\000\000\000\000\000\000\000\026\043\050\000\000\000\001\000\000\000\001\120\020\000\000\000\000\000\000' >"$1/tcp"
}

journal() {
    head='{"schema":"weir.journal/1","netns":{"inode":4026531840,"cookie":1},"ifindex":'
    guard='"guard":{"pid":7,"start":9},"entries":['
    printf '%s2,"name":"eth0",%s{"set":"napi_defer","id":8193,"queue":0,"old":0,"ours":[8]},{"set":"gro","old":1,"ours":[0]},{"set":"rps_cpus","id":0,"queue":0,"old":"0-1","ours":[""]}]}' \
        "$head" "$guard" >"$1/interface"
    printf '%s0,"name":"host",%s{"set":"irq_cpus","id":24,"old":"0-3","ours":["1"]},{"set":"task_cpus","id":99,"start":5,"old":"0","ours":["1"]},{"set":"xps_cpus","id":0,"ifindex":2,"old":"","ours":["0"]}]}' \
        "$head" "$guard" >"$1/host"
}

keeper() {
    # A journal, a handle, that handle again dropped, a greeting: each behind its length.
    printf '\006J\001\000\000\000\000\012H\002\000\000\000\001\000\000\000\000\011h\003\000\000\000\001\000\000\000' >"$1/care"
    printf '\021A\000\000\000\000\007\000\000\000\011\000\000\000\000\000\000\000' >"$1/hello"
}

config() {
    cp packaging/weir.toml "$1/shipped"
    sed 's/^#\([a-z]\)/\1/' packaging/weir.toml >"$1/every-key"
}

http() {
    printf 'GET / HTTP/1.1\r\nHost: localhost:9494\r\n\r\n' >"$1/page"
    printf 'HEAD /metrics?x=1 HTTP/1.1\r\nHost: [::1]:9495\r\nAccept: */*\r\n\r\n' >"$1/metrics"
    printf 'POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx' >"$1/post"
}

procfs() {
    # The first byte names the reader: crates/kern/src/raw/fuzz.rs.
    number=0
    for file in net/snmp net/snmp6 net/sockstat stat softirqs net/softnet_stat net/dev sys/net/ipv4/tcp_rmem self/stat \
        self/schedstat net/udp net/netfilter/nfnetlink_queue net/packet self/stat interrupts irq/default_smp_affinity cmdline; do
        {
            # shellcheck disable=SC2059
            printf "\\$(printf %03o $number)"
            head -c 4000 "/proc/$file" 2>/dev/null || true
        } >"$1/$number"
        number=$((number + 1))
    done
}

# weir with coverage counters, and with libFuzzer's main in the place of its own. Given a target, cargo leaves programs that
# run during the build as they are.
weir() {
    [ -z "${built:-}" ] || return 0
    built=yes
    library=$(ls "$("$clang" -print-runtime-dir)"/libclang_rt.fuzzer-"$(uname -m)".a 2>/dev/null || true)
    [ -n "$library" ] || skip
    host=$(rustc -vV | sed -n 's/^host: //p')
    passes="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
    passes="$passes -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
    RUSTFLAGS="--cfg fuzzing $passes -Cdebug-assertions=yes -Clink-arg=$library -Clink-arg=-lstdc++" \
        "${CARGO:-cargo}" build -p weir --bin weir --target "$host" --target-dir "$out/build"
    cp "$out/build/$host/debug/weir" "$out/weir"
}

for input in "$@"; do
    case $input in
    frames | journal | keeper | config | http | procfs) ;;
    *)
        echo "error: $input: no such input; there are frames, journal, keeper, config, http and procfs" >&2
        exit 2
        ;;
    esac
    corpus=$out/corpus-$input
    mkdir -p "$corpus" "$out/tmp"
    $input "$corpus"
    program=$out/frames
    if [ "$input" != frames ]; then
        weir
        program=$out/weir
    fi
    echo "fuzzing $input for $seconds s"
    TMPDIR=$out/tmp WEIR_FUZZ=$input "$program" -max_total_time="$seconds" -max_len=4400 -print_final_stats=1 -print_funcs=0 -verbosity=0 \
        -artifact_prefix="$out/fault-$input-" "$corpus" || exit 1
    rm -rf "$out/tmp"
done
