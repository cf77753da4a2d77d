//! The guard's BPF programs load and attach on this kernel.
#![cfg(not(no_bpf))]

#[test]
fn gauges_load_and_every_probe_attaches_root() {
    if !testkit::root_or_skip("gauges_load_and_every_probe_attaches_root") {
        return;
    }
    let gauges = kern::guard::Gauges::load(2, 0).unwrap();
    let p = &gauges.probes;
    assert!(p.napi_poll && p.udp_full && p.recv && p.switch && p.softirq, "{p:?}");
}
