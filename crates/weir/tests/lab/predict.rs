//! `weir predict` on a host in namespaces that reads a light and changing load.

use std::time::Duration;

use crate::common::world::{PORT, World, far};
use crate::common::{alone, possible};
use serde_json::Value;

#[test]
fn a_light_load_tells_what_the_host_can_take_root() {
    if !possible("a_light_load_tells_what_the_host_can_take_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("prd", 1);
    let name = far(0);

    let (code, out, error) = world.weir(&["predict", &name, "--for", "1s"]);
    assert_eq!((code, out.as_str()), (1, ""), "{error}");
    assert!(error.starts_with("error: in0: ") && error.contains("weir lab run mlfrr"), "{error}");
    let (code, _, error) = world.weir(&["predict", "in9"]);
    assert!(code == 2 && error.contains("in9: ") && error.contains("in0"), "{error}");

    let _sink = world.sink(0, PORT);
    // Up to a seventh of what the slowest machine has taken; every other step, so that drift is no cost.
    let rates = [8e3, 24e3, 40e3, 16e3, 32e3, 48e3].repeat(2);
    let phases: Vec<(Duration, f64)> = rates.iter().map(|r| (Duration::from_millis(600), *r)).collect();
    let load = world.send(&[(0, PORT)], &[], &phases);
    let (code, out, error) =
        world.weir(&["predict", &name, "--json", "--for", "6s", "--guarded", "--work-us", "20"]);
    load.stop().unwrap();
    load.wait().unwrap();
    assert_eq!(code, 0, "{error}");
    let answer: Value = serde_json::from_str(&out).unwrap();
    let seen = &answer["interfaces"][0];
    assert_eq!(
        (answer["schema"].as_str(), seen["interface"].as_str()),
        (Some("weir.predict/1"), Some("in0"))
    );
    assert_eq!((seen["cpu"].as_u64(), seen["costs"]["varied"].as_bool()), (Some(1), Some(true)), "{seen}");
    assert!(seen["readers"][0]["name"] == "udp-sink", "{seen}");
    // The wire may miss its rate when its CPU is wanted by others; it never exceeds it.
    let now = seen["now_pps"].as_f64().unwrap();
    assert!((4e3..36e3).contains(&now), "{now}");
    let row = |change: &str| {
        let rows = seen["rows"].as_array().unwrap();
        rows.iter()
            .find(|r| r["change"].as_str().unwrap().starts_with(change))
            .unwrap_or_else(|| panic!("{seen}"))
    };
    let value = |change: &str| row(change)["mlfrr_pps"]["value"].as_f64().unwrap();
    // A work of 1 us on any machine; what is measured stands in docs/measurements. Where a packet's cost can hardly be told from none the
    // guess has no upper end, and its lower one is what is said.
    let low = row("today")["mlfrr_pps"]["low"].as_f64().unwrap();
    assert!(value("today") > 60e3 && low < 2e6, "{seen}");
    assert_eq!(
        (row("today")["class"].as_str(), row("--guarded")["class"].as_str()),
        (Some("livelock"), Some("realizable"))
    );
    assert!(value("--guarded") >= value("today"), "{seen}");
    // 1 / 20 us, less what receiving costs: beside other programs that can be too little to be seen.
    assert!(value("--work-us") < 50.1e3 && value("all of these") < 50.1e3, "{seen}");
}
