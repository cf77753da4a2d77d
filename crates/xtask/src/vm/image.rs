//! The root file system of a machine: the programs under test, the libraries they are linked to, and the modules of
//! one driver, as an archive in the format that kernels unpack (`newc`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Longest chain of modules that need each other.
const DEPTH: usize = 16;

/// An archive that grows.
pub struct Archive {
    bytes: Vec<u8>,
    seen: BTreeSet<String>,
    modules: usize,
}

impl Archive {
    /// With the directories that the first process mounts on.
    pub fn new() -> Self {
        let mut archive = Self { bytes: Vec::new(), seen: BTreeSet::new(), modules: 0 };
        for dir in ["dev", "proc", "sys", "run", "tmp"] {
            archive.directory(dir);
        }
        archive
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        let inode = self.seen.len() + 1;
        let header = format!(
            "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            0,
            0,
            1,
            0,
            data.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0
        );
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(data);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn directory(&mut self, name: &str) {
        if name.is_empty() || !self.seen.insert(name.into()) {
            return;
        }
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
        self.entry(name, 0o040_755, &[]);
    }

    /// A file under `name`, without a leading slash.
    pub fn file(&mut self, name: &str, data: &[u8]) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
        if self.seen.insert(name.into()) {
            self.entry(name, 0o100_755, data);
        }
    }

    /// The program at `path` as `name`, and every library it is linked to, where it expects it.
    pub fn program(&mut self, path: &Path, name: &str) -> anyhow::Result<()> {
        let read = |p: &Path| std::fs::read(p).with_context(|| format!("{}: build it first", p.display()));
        self.file(name, &read(path)?);
        let listed = Command::new("ldd").arg(path).output().context("ldd")?;
        for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            if word.starts_with('/') {
                self.file(word.trim_start_matches('/'), &read(Path::new(word))?);
            }
        }
        Ok(())
    }

    /// `module` and what it needs, numbered in the order of loading.
    pub fn modules(&mut self, dir: &Path, module: &str) -> anyhow::Result<()> {
        let mut order = Vec::new();
        add(dir, module, &mut order, 0)?;
        for (i, (name, data)) in order.iter().enumerate() {
            self.file(&format!("modules/{:02}-{name}.ko", self.modules + i), data);
        }
        self.modules += order.len();
        Ok(())
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

fn add(dir: &Path, module: &str, order: &mut Vec<(String, Vec<u8>)>, depth: usize) -> anyhow::Result<()> {
    if order.iter().any(|(name, _)| name == module) {
        return Ok(());
    }
    if depth > DEPTH {
        bail!("{module}: its modules need each other without an end");
    }
    let path = find(dir, module)?.with_context(|| format!("{module}: not in {}", dir.display()))?;
    let data = if path.extension().is_some_and(|e| e == "xz") {
        Command::new("xz").arg("-dc").arg(&path).output().context("xz")?.stdout
    } else {
        std::fs::read(&path)?
    };
    for needed in depends(&data) {
        add(dir, &needed, order, depth + 1)?;
    }
    order.push((module.into(), data));
    Ok(())
}

/// Names in the field `depends=` of a module.
fn depends(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(start) = module.windows(FIELD.len()).position(|w| w == FIELD) else { return Vec::new() };
    let rest = &module[start + FIELD.len()..];
    let text = rest.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

/// The file of `module` below `dir`; `-` and `_` mean the same in its name.
fn find(dir: &Path, module: &str) -> anyhow::Result<Option<PathBuf>> {
    let wanted = module.replace('-', "_");
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)?.flatten() {
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                dirs.push(path);
                continue;
            }
            let name = entry.file_name().to_string_lossy().replace('-', "_");
            if name.split_once(".ko").is_some_and(|(stem, _)| stem == wanted) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_kernel_unpacks() {
        let mut a = Archive::new();
        a.file("a/b/c", b"hello");
        let bytes = a.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        for name in ["dev\0", "a\0", "a/b\0", "a/b/c\0", "TRAILER!!!\0"] {
            assert!(text.contains(name), "{name}");
        }
        let at = text.find("a/b/c").map(|i| i - 110).unwrap_or_default();
        assert_eq!(&text[at..at + 6], "070701");
        assert_eq!(&text[at + 54..at + 62], "00000005", "its size");
    }

    #[test]
    fn needed_modules() {
        assert_eq!(depends(b"x\0license=GPL\0depends=virtio,net-failover\0y"), ["virtio", "net-failover"]);
        assert!(depends(b"\0depends=\0").is_empty());
        assert!(depends(b"nothing").is_empty());
    }
}
