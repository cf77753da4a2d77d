//! Sets `cfg(no_bpf)` like the crate kern: without BPF programs there is no guard in this build.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(no_bpf)");
    println!("cargo::rerun-if-env-changed=DEP_WEIR_KERN_NO_BPF");
    if std::env::var_os("DEP_WEIR_KERN_NO_BPF").is_some() {
        println!("cargo::rustc-cfg=no_bpf");
    }
}
