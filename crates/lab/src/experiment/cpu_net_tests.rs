use super::*;

fn seen(switches: f64, us: f64, loss: f64) -> Vec<Seen> {
    let trial = Trial { window_loss: Some(loss), goodput_pps: 1e4, ..Trial::default() };
    vec![Seen { switches, us_per_packet: us, softirqs: 10.0, trial, ..Seen::default() }]
}

/// Two rates; `weir` at both, all stock arms alike but for one that is better in one thing and loses packets.
fn taken(arms: &[Arm], weir: [(f64, f64); 2], loss: f64) -> Taken {
    let mut taken = Taken::new();
    for (a, arm) in arms.iter().enumerate() {
        for (r, own) in weir.iter().enumerate() {
            taken.insert(
                (a, r),
                match arm.role {
                    Role::Weir => seen(own.0, own.1, loss),
                    _ if arm.name == "affine-rps" => seen(10.0, 0.1, 0.5),
                    _ => seen(1000.0, 2.0, 0.0),
                },
            );
        }
    }
    taken
}

#[test]
fn the_worst_rate_is_judged_against_the_best_arm_that_loses_nothing() {
    let arms = arms(20, 0);
    let judged = verdict(&arms, &[1.0, 2000.0], &taken(&arms, [(500.0, 1.0), (700.0, 1.9)], 0.0));
    let value = |n: usize| judged[n].value.unwrap();
    assert_eq!((value(0), judged[0].holds), (0.7, false), "{judged:?}");
    assert!(judged[0].claim.contains("2 k/s"), "{}", judged[0].claim);
    assert_eq!((value(1), judged[1].holds), (0.95, true));
    assert!((value(2) - 0.1).abs() < 1e-9 && judged[2].holds);
    assert!(!judged[3].holds, "a release that was not seen is no release");
}

#[test]
fn an_arm_that_loses_packets_is_compared_with_nothing() {
    let arms = arms(20, 0);
    let judged = verdict(&arms, &[1.0, 2.0], &taken(&arms, [(1.0, 0.1); 2], 0.01));
    assert!(judged[..2].iter().all(|v| v.value.is_none() && !v.holds), "{judged:?}");
}

#[test]
fn softirq_time_is_counted_once() {
    let at = Instant::now();
    let reading = |at, meter, guard_ns, switches| Reading {
        at,
        meter,
        switches,
        guard_ns,
        carriers_ns: 0,
        host_tasks_ns: None,
    };
    let mut meter = Meter { softirq_ns: 30_000_000, softirq_runs: 50, packets: 100, ..Meter::default() };
    meter.stolen_ns[Class::Guard as usize] = 10_000_000;
    meter.packets_by[Class::Guard as usize] = 100;
    let (from, to) = (
        reading(at, Meter::default(), 0, 0),
        reading(at + Duration::from_millis(100), meter, 40_000_000, 20),
    );
    let read = Report { window_ns: 100_000_000, served: 1000, cpu_ns: 20_000_000, ..Report::default() };
    let seen = fold(Trial::default(), &from, &to, &read);
    // 30 ms of softirq, 30 of the guard beside it, 20 of the program, for 1,000 packets.
    assert!((seen.us_per_packet - 80.0).abs() < 1e-6, "{}", seen.us_per_packet);
    assert_eq!((seen.switches, seen.softirqs, seen.mode), (200.0, 500.0, Some(Mode::Poll)));
}

#[test]
fn an_arm_that_is_not_there_is_named() {
    let wanted = ["split".to_string(), "nowhere".to_string()];
    let answer = choose(arms(20, 0), Some(&wanted));
    assert!(matches!(answer, Err(Error::Usage(text)) if text.contains("nowhere")));
    assert_eq!(choose(arms(20, 0), Some(&wanted[..1])).unwrap().len(), 1);
}
