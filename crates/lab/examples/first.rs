use std::time::Duration;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let cpus = lab::Cpus { wire: 0, host: 1 };
    kern::wire::tasks::pin(0, 0).unwrap();
    let _ = kern::wire::netns::remove_stale();
    let sink = lab::locate("udp-sink", None).unwrap();
    let hog = lab::locate("hog", None).unwrap();
    let out = std::process::Command::new(&sink).args(["--calibrate", "--cpu", "1"]).output().unwrap();
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let loops = v["loops_per_ms"].as_u64().unwrap() / 1000;
    println!("loops per us {loops}");
    let bench = lab::Bench { wire: kern::wire::source::Wire::load().unwrap(), cpus, sink, hog, weir: std::env::var_os("WEIR").map(Into::into), loops, interrupt: lab::Interrupt::new() };
    let names: Vec<&str> = args[1].split(',').collect();
    for rate in args[2].split(',') {
        for arm in lab::arms().iter().filter(|a| names.contains(&a.name.as_str())) {
            let r = rate.parse::<f64>().ok();
            let burst = std::env::var("BURST").ok().and_then(|b| b.parse().ok()).unwrap_or(match r { None => 64, Some(r) => ((r * 20e-6) as u32).clamp(1, 64) });
            let hogs = std::env::var("HOGS").ok().and_then(|b| b.parse().ok()).unwrap_or(0);
            let offer = lab::Offer { rate: r, burst, warm_up: Duration::from_millis(300), window: Duration::from_millis(std::env::var("WINDOW").ok().and_then(|b| b.parse().ok()).unwrap_or(1000)), hogs };
            match bench.trial(arm, &offer) {
                Err(e) => println!("{:12} {rate} error {e}", arm.name),
                Ok(o) => {
                    let t = &o.trial;
                    let c = t.cpu.clone().unwrap();
                    println!("{:12} rate {:>8} offered {:>9.0} goodput {:>8.0} unacc {} drops {:?} polls {:?} foreign {}/{} soft {:.3} weir {:.3} prog {:.3} hog {:.3} idle {:.3} steal {:.3} lat {:?} void {:?}", arm.name, rate, t.offered_pps, t.goodput_pps, t.unaccounted, t.drops, t.polls, o.foreign_polls, o.foreign_packets, c.softirq, c.weir, c.program, c.hog, c.idle, t.steal_share.unwrap(), t.latency_us.map(|l| (l.p50 as u64, l.p99 as u64, l.p999 as u64)), t.void);
                }
            }
        }
    }
}
