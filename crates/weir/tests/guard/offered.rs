//! What the status calls offered is what arrived at the device, not what NAPI handed up of it.

use crate::common::world::{PORT, World};
use crate::common::{alone, ms, possible};

/// Far more than the host CPU hands up.
const FLOOD: f64 = 3e6;
/// Frames of the stack's own that may come besides: neighbours, routers.
const OTHERS: u64 = 100;

/// It cannot flake on a busy machine: it compares counts after the load has ended, and no rate.
#[test]
fn offered_is_what_arrived_at_the_device_root() {
    if !possible("offered_is_what_arrived_at_the_device_root") {
        return;
    }
    let _alone = alone();
    let world = World::new("offered", 1);
    let _sink = world.sink(0, PORT);
    let guard = world.guard(&[]);
    let first = guard.ask(&world);
    assert!(first["interfaces"][0]["offered"].is_null(), "nothing to compare with: {first}");
    let sent = world.send(&[(0, PORT)], &[], &[(ms(2000), FLOOD)]).wait().unwrap();
    let sent: u64 = sent.by_phase.iter().sum();
    let status = guard.ask(&world);
    let interface = &status["interfaces"][0];
    let n = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let (offered, ring) = (n(&interface["offered"]), n(&interface["drops"]["ring"]));
    let handed_up = n(&interface["sources"][0]["packets"]);
    println!("{sent} sent, {offered} offered, {ring} found the ring full, {handed_up} handed up");
    assert!((sent..=sent + OTHERS).contains(&offered), "{sent} sent: {interface}");
    assert!(ring > sent / 4 && handed_up < offered, "{sent} sent: {interface}");
    assert_eq!(n(&interface["drops_total"]["ring"]), ring, "{interface}");
}
