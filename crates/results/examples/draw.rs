//! Draws the synthetic document of the tests, to be looked at: `cargo run -p weir-results --example draw FOLDER`.

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

fn main() -> std::io::Result<()> {
    let document = synthetic::livelock_udp();
    print!("{}", results::table(&document));
    Ok(())
}
