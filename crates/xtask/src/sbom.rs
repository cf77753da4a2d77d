//! `xtask sbom DIR`: a bill of materials for each program that is shipped, in the format of CycloneDX 1.5. Which packages a
//! program has is what `cargo tree` says, because `cargo metadata` counts features that only other members of the workspace ask
//! for; licences are from `cargo metadata`, checksums from Cargo.lock. There is no moment and no random number in it: the same
//! Cargo.lock gives the same bytes.

use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The programs, by the package whose libraries each links. They are two programs of the one package `weir`.
const PROGRAMS: [(&str, &str); 2] = [
    ("weir", "Receive scheduler for Linux, with its lab, simulator and pages"),
    ("weir-guard", "The guard and its keeper, which run with capabilities"),
];

/// Name and version.
type Id = (String, String);

pub fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let [directory] = args else { bail!("usage: xtask sbom DIR") };
    std::fs::create_dir_all(directory).with_context(|| directory.clone())?;
    let known = Known::read(&root())?;
    for (program, what) in PROGRAMS {
        let file = Path::new(directory).join(format!("{program}.cdx.json"));
        let bill = known.bill(&Tree::of(program)?, what)?;
        let count = bill["components"].as_array().map_or(0, Vec::len);
        std::fs::write(&file, format!("{bill:#}\n")).with_context(|| file.display().to_string())?;
        println!("built: {}, {count} packages", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Of the tree that this program is from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn cargo(args: &[&str]) -> anyhow::Result<String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program).args(args).current_dir(root()).output().context("cargo")?;
    if !output.status.success() {
        bail!("cargo {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Address of a package for those who look up what is known about it.
fn purl((name, version): &Id) -> String {
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// A licence as an expression of SPDX: packages from before there was one have a slash in it.
fn expression(license: &str) -> String {
    let words: Vec<&str> = license.split('/').map(str::trim).collect();
    words.join(" OR ")
}

/// What one program is made of.
#[derive(Debug, Default, PartialEq)]
struct Tree {
    root: Id,
    /// What each package uses; packages of this tree are part of the program.
    uses: BTreeMap<Id, BTreeSet<Id>>,
    /// Those that run in the compiler.
    macros: BTreeSet<Id>,
}

impl Tree {
    fn of(package: &str) -> anyhow::Result<Tree> {
        let tree =
            ["tree", "--locked", "-p", package, "-e", "normal", "--prefix", "depth", "--format", " {p}"];
        Tree::parse(&cargo(&tree)?)
    }

    /// Lines such as `2 syn v3.0.9 (proc-macro) (*)`; what follows a line and is deeper is used by it, and `(*)` stands where
    /// that was told before.
    fn parse(text: &str) -> anyhow::Result<Tree> {
        let mut tree = Tree::default();
        let mut above: Vec<Id> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let mut word = || words.next().with_context(|| line.to_owned());
            let depth: usize = word()?.parse().with_context(|| line.to_owned())?;
            let (name, version) = (word()?, word()?);
            let version = version.strip_prefix('v').with_context(|| line.to_owned())?;
            let mut id = (name.to_owned(), version.to_owned());
            if depth == 0 {
                tree.root = id.clone();
            } else if words.clone().any(|word| word.starts_with("(/")) {
                id = tree.root.clone();
            }
            if words.any(|word| word == "(proc-macro)") {
                tree.macros.insert(id.clone());
            }
            above.truncate(depth);
            if let Some(user) = above.last().filter(|user| **user != id) {
                tree.uses.entry(user.clone()).or_default().insert(id.clone());
            }
            tree.uses.entry(id.clone()).or_default();
            above.push(id);
        }
        Ok(tree)
    }

    /// Those that are in the program itself, and not only in the compiler that makes it.
    fn linked(&self) -> BTreeSet<&Id> {
        let (mut found, mut next) = (BTreeSet::new(), vec![&self.root]);
        while let Some(id) = next.pop() {
            if !self.macros.contains(id) && found.insert(id) {
                next.extend(&self.uses[id]);
            }
        }
        found
    }
}

/// What is known of every package.
struct Known {
    licences: BTreeMap<Id, String>,
    checksums: BTreeMap<Id, String>,
}

impl Known {
    fn read(root: &Path) -> anyhow::Result<Known> {
        // Without a platform, packages of every other one would have to be fetched.
        let about = cargo(&["-vV"])?;
        let host =
            about.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo -vV: no host")?;
        let metadata = ["metadata", "--format-version", "1", "--locked", "--filter-platform", host];
        let metadata: Value = serde_json::from_str(&cargo(&metadata)?)?;
        let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?;
        let lock: toml::Table = lock.parse()?;
        let packages =
            lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock: no package")?;
        let checksums = packages.iter().filter_map(|package| {
            let text = |key| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
            Some(((text("name")?, text("version")?), text("checksum")?))
        });
        let packages = metadata["packages"].as_array().context("cargo metadata: no packages")?;
        let licences = packages.iter().filter_map(|package| {
            let text = |key: &str| package[key].as_str().map(str::to_owned);
            Some(((text("name")?, text("version")?), expression(&text("license")?)))
        });
        Ok(Known { licences: licences.collect(), checksums: checksums.collect() })
    }

    fn bill(&self, tree: &Tree, what: &str) -> anyhow::Result<Value> {
        let linked = tree.linked();
        let licence = |id: &Id| self.licences.get(id).with_context(|| format!("{} has no licence", purl(id)));
        let mut components = Vec::new();
        for id in tree.uses.keys().filter(|id| **id != tree.root) {
            let checksum = self.checksums.get(id).with_context(|| format!("{} has no checksum", purl(id)))?;
            components.push(json!({
                "type": "library",
                "bom-ref": purl(id),
                "purl": purl(id),
                "name": id.0,
                "version": id.1,
                "licenses": [{ "expression": licence(id)? }],
                "hashes": [{ "alg": "SHA-256", "content": checksum }],
                "scope": if linked.contains(id) { "required" } else { "excluded" },
            }));
        }
        let dependencies: Vec<Value> = tree
            .uses
            .iter()
            .map(|(id, uses)| json!({ "ref": purl(id), "dependsOn": uses.iter().map(purl).collect::<Vec<_>>() }))
            .collect();
        let root = &tree.root;
        Ok(json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "component": {
                    "type": "application",
                    "bom-ref": purl(root),
                    "name": root.0,
                    "version": root.1,
                    "description": what,
                    "licenses": [{ "expression": licence(root)? }],
                },
            },
            "components": components,
            "dependencies": dependencies,
        }))
    }
}

#[cfg(test)]
mod tests {
    //! Cannot flake: texts are compared, and cargo reads files that no test writes.

    use super::*;

    fn id(name: &str, version: &str) -> Id {
        (name.to_owned(), version.to_owned())
    }

    #[test]
    fn what_only_a_macro_uses_is_not_in_the_program() {
        let text = "0 prog v0.1.0 (/x/crates/prog)\n1 a v1.0.0\n2 b v2.0.0+c2\n1 m v1.1.0 (proc-macro)\n2 q v1.0.0\n\
                    2 b v2.0.0+c2 (*)\n1 part v0.1.0 (/x/crates/part)\n2 z v3.0.0\n";
        let tree = Tree::parse(text).unwrap();
        let (b, z) = (id("b", "2.0.0+c2"), id("z", "3.0.0"));
        // A part of this tree is the program, not a component of it.
        let of_root = [id("a", "1.0.0"), id("m", "1.1.0"), z.clone()];
        assert_eq!(tree.uses[&tree.root], of_root.into());
        assert_eq!(tree.uses.len(), 6, "{tree:?}");
        assert_eq!(tree.uses[&id("m", "1.1.0")], [b.clone(), id("q", "1.0.0")].into());
        assert_eq!(tree.linked(), [&tree.root, &id("a", "1.0.0"), &b, &z].into());
        assert_eq!(purl(&b), "pkg:cargo/b@2.0.0%2Bc2");
        assert!(Tree::parse("0 prog\n").is_err());
    }

    #[test]
    fn licences_are_expressions() {
        assert_eq!(expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(expression("(MIT OR Apache-2.0) AND Unicode-3.0"), "(MIT OR Apache-2.0) AND Unicode-3.0");
    }

    #[test]
    fn no_bill_of_a_package_without_checksum_or_licence() {
        let tree = Tree::parse("0 prog v0.1.0 (/x)\n1 a v1.0.0\n").unwrap();
        let both = [(id("prog", "0.1.0"), "MIT".to_owned()), (id("a", "1.0.0"), "MIT".to_owned())];
        let mut known = Known { licences: both.into(), checksums: BTreeMap::new() };
        assert!(known.bill(&tree, "").unwrap_err().to_string().contains("a@1.0.0 has no checksum"));
        known.checksums.insert(id("a", "1.0.0"), "00".to_owned());
        assert!(known.bill(&tree, "").is_ok());
        known.licences.remove(&id("a", "1.0.0"));
        assert!(known.bill(&tree, "").unwrap_err().to_string().contains("a@1.0.0 has no licence"));
    }

    /// One list serves the package, which links libraries of the system, and the static programs in the image.
    #[test]
    fn a_bill_has_exactly_the_packages_that_cargo_links() {
        let known = Known::read(&root()).unwrap();
        let page = std::fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        for (program, what) in PROGRAMS {
            let bill = known.bill(&Tree::of(program).unwrap(), what).unwrap();
            assert_eq!(bill, known.bill(&Tree::of(program).unwrap(), what).unwrap());
            let (mut listed, mut references) = (BTreeSet::new(), BTreeSet::new());
            for component in bill["components"].as_array().unwrap() {
                let text = |at: &str| component.pointer(at).and_then(Value::as_str).unwrap_or_default();
                let (name, version) = (text("/name"), text("/version"));
                let checksum = text("/hashes/0/content");
                assert!(checksum.len() == 64 && !text("/licenses/0/expression").is_empty(), "{component}");
                assert_eq!(text("/purl"), purl(&id(name, version)));
                let entry = format!("name = \"{name}\"\nversion = \"{version}\"\nsource = ");
                let entry =
                    lock.split(&entry).nth(1).unwrap_or_else(|| panic!("{name} is not in Cargo.lock"));
                assert!(entry.lines().nth(1).is_some_and(|line| line.contains(checksum)), "{component}");
                listed.insert(format!("{name} v{version}"));
                references.insert(text("/bom-ref").to_owned());
            }
            let flags = ["tree", "--locked", "-p", program, "-e", "normal", "--prefix", "none", "-f", "{p}"];
            let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
            for more in [vec![], vec!["--target", musl.as_str(), "--features", "static"]] {
                let tree = cargo(&[&flags[..], &more].concat()).unwrap();
                let foreign = tree.lines().filter(|line| !line.is_empty() && !line.contains("(/"));
                let linked: BTreeSet<String> =
                    foreign.map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
                assert_eq!(listed, linked, "{program} {more:?}");
            }
            let count = listed.len();
            let told = if program == "weir" {
                format!("links {count} (")
            } else {
                format!("links {count} packages")
            };
            assert!(page.contains(&told), "docs/dependencies.md does not say that {program} {told}");
            // The root's edges and those of every component are there, and lead to components.
            references.insert(purl(&id(program, env!("CARGO_PKG_VERSION"))));
            let edges = bill["dependencies"].as_array().unwrap();
            assert_eq!(edges.len(), count + 1);
            for edge in edges {
                let ends = edge["dependsOn"].as_array().unwrap().iter().chain([&edge["ref"]]);
                ends.for_each(|end| assert!(references.contains(end.as_str().unwrap()), "{edge}"));
            }
        }
    }
}
