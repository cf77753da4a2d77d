//! Every BPF program of weir before the verifier of this kernel.

use super::{Host, seen};
use anyhow::Context;
use kern::guard::Connections;

/// Programs that need something newer, and since when it is there: an older kernel refuses them, and weir does without them
/// (docs/kernels.md). All others must load.
const SINCE: [(&str, (u32, u32)); 26] = [
    // `bpf_get_current_task_btf`, `bpf_sock_from_file`.
    ("guard/weir_softirq_exit", (5, 11)),
    ("listeners/weir_listeners", (5, 11)),
    // Cookies of sockets for tracing, and atomic operations that answer with the old value.
    ("guard/weir_udp_full_old", (5, 12)),
    ("probes/weir_queue", (5, 12)),
    ("probes/weir_rps_gro", (5, 12)),
    ("probes/weir_rps_frags", (5, 12)),
    ("probes/weir_rps_single", (5, 12)),
    ("probes/weir_rps_list", (5, 12)),
    ("probes/weir_segment", (5, 12)),
    ("probes/weir_entry", (5, 12)),
    ("probes/weir_waking", (5, 12)),
    ("probes/weir_switch", (5, 12)),
    ("probes/weir_drop", (5, 12)),
    ("wire/output_sent", (5, 12)),
    // Pointers to memory as arguments of functions that are verified apart.
    ("rx/weir_rx", (5, 12)),
    // The reason of a drop; the interface of a packet in `sk_lookup`; `bpf_loop`.
    ("guard/weir_nobody", (5, 17)),
    ("guard/weir_dropped", (5, 17)),
    ("steer/weir_steer", (5, 17)),
    ("wire/wire_source", (5, 17)),
    ("wire/wire_rule_set", (5, 17)),
    // `bpf_rdonly_cast`.
    ("accept/weir_accept", (6, 2)),
    // Tracepoints `sock_recv_length` and `sk_data_ready`.
    ("guard/weir_recv", (6, 3)),
    ("guard/weir_find_filter", (6, 3)),
    ("probes/weir_ready", (6, 3)),
    ("probes/weir_read", (6, 3)),
    // The packet in the tracepoint of a full socket.
    ("guard/weir_udp_full", (6, 10)),
];

/// Since when an XDP program may ask whether a frame belongs to a connection.
const CONNECTIONS: (u32, u32) = (5, 18);

/// Last lines of a verifier's log that the host keeps in talk.log, of a program that ought to load.
const LOG: usize = 150;

/// One row for each program, and one for the XDP program as the packaged service loads it.
pub fn run(host: &mut Host) -> anyhow::Result<()> {
    host.tell("ready");
    let kernel = seen::kernel();
    let expected = |told| if kernel >= CONNECTIONS { told } else { Connections::Untold };
    let told = kern::guard::connections();
    host.row(told == expected(Connections::Told), "rx: the table of connections", &format!("{told:?}"));
    let (told, packaged) = kern::verify::packaged().context("as the packaged service")?;
    host.row(told == expected(Connections::Hidden), "rx: without CAP_SYS_ADMIN", &format!("{told:?}"));
    let all = kern::verify::all().context("BPF objects")?.into_iter().map(|v| (v, ""));
    for (verdict, how) in all.chain(packaged.into_iter().map(|v| (v, ", as packaged"))) {
        let since = SINCE.iter().find(|(name, _)| *name == verdict.name).map(|(_, since)| *since);
        let expected = since.is_none_or(|since| kernel >= since);
        let mut words = match &verdict.answer {
            Ok(0) => "loaded".to_owned(),
            Ok(instructions) => format!("loaded, {instructions} instructions walked"),
            Err(line) => format!("refused: {line}"),
        };
        if let Some((major, minor)) = since.filter(|since| kernel < *since) {
            words = format!("{words} (as before {major}.{minor})");
        }
        if verdict.answer.is_err() && expected {
            let lines: Vec<&str> = verdict.said.lines().collect();
            host.note(&lines[lines.len().saturating_sub(LOG)..].join("\n"));
        }
        host.row(verdict.answer.is_ok() == expected, &format!("{}{how}", verdict.name), &words);
    }
    Ok(())
}
