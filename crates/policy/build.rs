//! Compiles `src/c/classify.h` for the host and tells the crate kern where it lies, which compiles it for BPF.

use std::{env, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=src/c");
    let here = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::metadata=include={}", Path::new(&here).join("src/c").display());
    cc::Build::new()
        .file("src/c/classify.c")
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("weir_classify");
}
