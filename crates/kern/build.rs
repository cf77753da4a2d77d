//! Compiles `src/bpf/*.bpf.c` with clang into `OUT_DIR`. Without clang (or without the feature `bpf`) each
//! object is empty, `cfg(no_bpf)` is set, and loading answers with what to install.

use std::{env, fs, path::Path, process::Command};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(no_bpf)");
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    let out = env::var("OUT_DIR").unwrap_or_default();
    let clang = env::var("BPF_CLANG").unwrap_or_else(|_| "clang".into());
    let wanted = env::var_os("CARGO_FEATURE_BPF").is_some();
    let found = Command::new(&clang).arg("--version").output().is_ok_and(|o| o.status.success());
    if wanted && !found {
        println!(
            "cargo::warning={clang} not found: built without BPF programs, `weir guard` and `weir lab` will refuse; install clang"
        );
    }
    let build = wanted && found;
    if !build {
        println!("cargo::rustc-cfg=no_bpf");
        println!("cargo::metadata=no_bpf=1");
    }
    let mut sources: Vec<_> =
        fs::read_dir("src/bpf").into_iter().flatten().flatten().map(|e| e.path()).collect();
    sources.sort();
    for source in sources {
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".bpf.c") else { continue };
        let object = Path::new(&out).join(format!("{stem}.bpf.o"));
        if build {
            compile(&clang, &source, &object);
        } else if let Err(e) = fs::write(&object, []) {
            panic!("{}: {e}", object.display());
        }
    }
}

fn compile(clang: &str, source: &Path, object: &Path) {
    let mut c = Command::new(clang);
    c.args([
        "-target",
        "bpf",
        "-mcpu=v3",
        "-O2",
        // For the BTF; what else it writes is for debuggers, and goes into a file that no program carries.
        "-g",
        "-gsplit-dwarf",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
    ]);
    // The BTF and the names of other files tell where it was built: two machines would build two programs.
    let mut call = |from: &str, to: &str| {
        c.arg(format!("-ffile-prefix-map={from}={to}"));
        // The compiler has its own directory without links.
        if let Ok(real) = fs::canonicalize(from) {
            c.arg(format!("-ffile-prefix-map={}={to}", real.display()));
        }
    };
    let here = env::current_dir().unwrap_or_default();
    let root = here.ancestors().nth(2).unwrap_or(&here);
    call(&root.to_string_lossy(), ".");
    call(&env::var("OUT_DIR").unwrap_or_default(), "out");
    let libbpf = env::var("DEP_BPF_INCLUDE").ok();
    let policy = env::var("DEP_WEIR_CLASSIFY_INCLUDE").ok();
    for (include, short) in [(&libbpf, "libbpf"), (&policy, "policy")] {
        include.iter().for_each(|include| call(include, short));
    }
    policy.iter().for_each(|include| println!("cargo::rerun-if-changed={include}"));
    for include in libbpf.iter().chain(&policy) {
        c.arg("-I").arg(include);
    }
    // Debian keeps asm/ under the multiarch directory, which clang does not search for -target bpf.
    for triple in ["x86_64-linux-gnu", "aarch64-linux-gnu", "riscv64-linux-gnu"] {
        let dir = format!("/usr/include/{triple}");
        if Path::new(&dir).join("asm/types.h").exists() {
            c.arg("-I").arg(dir);
        }
    }
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "arm64",
        Ok("riscv64") => "riscv",
        _ => "x86",
    };
    c.arg(format!("-D__TARGET_ARCH_{arch}")).arg("-c").arg(here.join(source));
    // The object names the file beside it, as it is called here.
    c.current_dir(object.parent().unwrap_or(&here)).arg("-o").arg(object.file_name().unwrap_or_default());
    match c.status() {
        Ok(s) if s.success() => {}
        Ok(s) => panic!("{clang} failed on {}: {s}", source.display()),
        Err(e) => panic!("{clang}: {e}"),
    }
}
