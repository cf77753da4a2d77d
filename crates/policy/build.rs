//! Compiles the headers of `src/c` for the host and tells the crate kern where they lie, which compiles them for BPF.

use std::{env, path::Path};

#[expect(clippy::disallowed_methods, reason = "how cargo tells a build script where it stands")]
fn main() {
    println!("cargo::rerun-if-changed=src/c");
    let here = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::metadata=include={}", Path::new(&here).join("src/c").display());
    cc::Build::new()
        .files([
            "src/c/accept.c",
            "src/c/behind.c",
            "src/c/classify.c",
            "src/c/fair.c",
            "src/c/gate.c",
            "src/c/syns.c",
        ])
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("weir_classify");
}
