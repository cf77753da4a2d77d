//! What libFuzzer calls with the bytes that it makes up, in a program that scripts/fuzz.sh builds. `WEIR_FUZZ` names what is
//! to take them. A panic, an overflow or an assertion that fails ends the process, which libFuzzer reports with the bytes.

use std::sync::OnceLock;

/// What takes bytes.
type Taker = fn(&[u8]);

/// Everything that reads what somebody else has written, by name.
const TAKERS: [(&str, Taker); 5] = [
    ("journal", kern::journal::fuzz::look),
    ("keeper", kern::keeper::fuzz::talk),
    ("config", crate::config::File::fuzz),
    ("http", serve::http::fuzz),
    ("procfs", kern::raw::fuzz::read),
];

fn taker() -> Taker {
    static CHOSEN: OnceLock<Taker> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("WEIR_FUZZ").unwrap_or_default();
        let found = TAKERS.iter().find(|(other, _)| *other == name);
        found.unwrap_or_else(|| panic!("WEIR_FUZZ is one of {}", TAKERS.map(|(name, _)| name).join(", "))).1
    })
}

/// The name that libFuzzer looks for.
// SAFETY: no other function has this name; libFuzzer's own declares it.
#[unsafe(no_mangle)]
pub extern "C" fn LLVMFuzzerTestOneInput(bytes: *const u8, length: usize) -> i32 {
    // SAFETY: libFuzzer gives so many bytes that live until this returns; for none the pointer may be null.
    let bytes = if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(bytes, length) } };
    taker()(bytes);
    0
}
