//! What weir shows to browsers and monitors: [`metrics`], the page with its live data ([`hub`]), and under both a server that
//! only reads ([`http`]).
//!
//! Whoever samples gives each [`see::Snapshot`] to a [`Hub`] and never waits for a client: clients take the newest one when
//! they are ready, and what came between is left out.

pub mod http;
pub mod hub;
pub mod metrics;
mod site;
pub mod token;

pub use hub::Hub;
pub use site::{METRICS_PORT, Show, WEB_PORT, parse_address};
