//! Single trials from the command line, for work on the lab: `trial ARM[,ARM] RATE[,RATE|max]`.
#![allow(clippy::unwrap_used)]
use std::time::Duration;
fn env<T: std::str::FromStr>(n: &str, d: T) -> T {
    std::env::var(n).ok().and_then(|b| b.parse().ok()).unwrap_or(d)
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let cpus = lab::Cpus { wire: 0, host: 1 };
    kern::wire::tasks::pin(0, 0).unwrap();
    let _ = kern::wire::netns::remove_stale();
    let kind = lab::Kind::named(&env("CONSUMER", "udp-sink".to_string())).unwrap();
    let mut consumer =
        lab::Setup::locate(kind, None, std::env::var("RCVBUF").ok().and_then(|bytes| bytes.parse().ok()))
            .unwrap();
    consumer.calibrate(1, Duration::from_micros(1)).unwrap();
    let hog = lab::locate("hog", None).unwrap();
    let bench = lab::Bench {
        wire: kern::wire::source::Wire::load().unwrap(),
        cpus,
        consumer,
        watch_output: false,
        hog,
        weir: std::env::var_os("WEIR").map(Into::into),
        interrupt: lab::Interrupt::new(),
    };
    let names: Vec<&str> = args[1].split(',').collect();
    for rate in args[2].split(',') {
        for arm in lab::all_arms(env("RESERVE", 20)).iter().filter(|a| names.contains(&a.name.as_str())) {
            let offer = lab::Offer {
                rate: rate.parse::<f64>().ok(),
                warm_up: Duration::from_millis(300),
                window: Duration::from_millis(env("WINDOW", 1000)),
                hogs: env("HOGS", 0),
            };
            match bench.trial(arm, &offer) {
                Err(e) => println!("{:12} {rate} error {e}", arm.name),
                Ok(o) => {
                    let t = &o.trial;
                    let c = t.cpu.unwrap();
                    println!(
                        "{:12} rate {:>8} offered {:>9.0} goodput {:>8.0} unacc {} drops {:?} polls {:?} {:?} own {:.4} foreign {}/{} soft {:.3} weir {:.3} prog {:.3} hog {:.3} idle {:.3} other {:.4} steal {:.3} lat {:?} void {:?}",
                        arm.name,
                        rate,
                        t.offered_pps,
                        t.goodput_pps,
                        t.unaccounted,
                        t.drops,
                        t.polls.unwrap(),
                        o.mode.unwrap(),
                        o.own_share,
                        o.foreign_polls,
                        o.foreign_packets,
                        c.softirq,
                        c.weir,
                        c.program,
                        c.hog,
                        c.idle,
                        o.host_other.unwrap_or(-1.0),
                        t.steal_share.unwrap(),
                        t.latency_us.map(|l| (l.p50 as u64, l.p99 as u64, l.p999 as u64)),
                        t.void
                    );
                }
            }
        }
    }
}
