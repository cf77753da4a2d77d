//! Mutants: defects that the tests must catch, kept as text in crates/kern/tests/mutants. Each is applied to a copy of the
//! working tree below target/mutants, and the tests that must catch it are run there. A mutant that survives is a gap in the
//! tests.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// The list, from the root of the tree.
const LIST: &str = "crates/kern/tests/mutants/mutants.toml";
/// What is made, from the root of the tree.
const SCRATCH: &str = "target/mutants";
/// Longest build, and longest run of the tests without a mutant.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(3600), Duration::from_secs(1200));
/// Some defects make the tests wait for ever: they may take so many times as long as without, and so long at least.
const LONGER: (u32, Duration) = (4, Duration::from_secs(60));
/// Between two looks at a child.
const LOOK: Duration = Duration::from_millis(20);

/// One defect.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    /// What goes wrong with it, one sentence.
    why: String,
    /// From the root of the tree.
    file: PathBuf,
    /// Text that occurs once in it, and what it becomes.
    old: String,
    new: String,
    /// Arguments of `cargo test`.
    test: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

impl Mutant {
    /// The file's text with the defect in it.
    fn apply(&self, text: &str) -> anyhow::Result<String> {
        let found = text.matches(&self.old).count();
        ensure!(found == 1, "{}: its text occurs {found} times in {}", self.name, self.file.display());
        Ok(text.replacen(&self.old, &self.new, 1))
    }
}

/// The answer of a command, `None` if it took too long and was killed; and its output.
type Ended = (Option<ExitStatus>, String);

/// What became of a mutant.
enum Fate {
    /// A test has failed: its name, if it said so.
    Caught(String),
    /// All tests passed.
    Survived,
    /// A test that could have caught it was not run.
    Skipped(String),
}

fn list(root: &Path) -> anyhow::Result<Vec<Mutant>> {
    let text =
        fs::read_to_string(root.join(LIST)).with_context(|| format!("{LIST}: run it in the tree's root"))?;
    Ok(toml::from_str::<List>(&text).context(LIST)?.mutant)
}

/// `mutants [--list] [--only NUMBER|NAME,...]`; exit code 1 if one survives or does not apply any more.
pub fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let root = std::env::current_dir()?;
    let all = list(&root)?;
    let mut chosen: Vec<(usize, &Mutant)> = all.iter().enumerate().map(|(n, m)| (n + 1, m)).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["--list"] => {
            let mut out = std::io::stdout().lock();
            for (n, mutant) in chosen {
                writeln!(out, "{n:>2} {:<36} {}\n   {}", mutant.name, mutant.file.display(), mutant.why)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        ["--only", which] => {
            let named = |n: usize, m: &Mutant| which.split(',').any(|w| m.name == w || w.parse() == Ok(n));
            chosen.retain(|(n, mutant)| named(*n, mutant));
            ensure!(!chosen.is_empty(), "{which}: no such mutant; see --list");
        }
        _ => bail!("mutants: neither --list nor --only NUMBER"),
    }
    let without = Command::new("sh").arg("scripts/features.sh").output()?.stdout;
    ensure!(
        without.trim_ascii().is_empty(),
        "some defects are in BPF programs: needs clang and libelf (make deps)"
    );
    let copy = Copy::new(&root)?;
    // The tests of one package run programs of another.
    copy.cargo(&["build", "--workspace"], PATIENCE.0, "build").and_then(passed).context("the tree itself")?;
    let mut limits = BTreeMap::new();
    for test in chosen.iter().map(|(_, mutant)| mutant.test.as_str()) {
        if limits.contains_key(test) {
            continue;
        }
        let (ran, took) = copy.test(test, PATIENCE.1, "none")?;
        passed(ran).with_context(|| format!("without a mutant: cargo test {test}"))?;
        limits.insert(test, (took * LONGER.0).max(LONGER.1));
    }
    let (mut bad, mut skipped) = (0, 0);
    for (n, mutant) in &chosen {
        let begun = Instant::now();
        let said = match copy.fate(mutant, limits[mutant.test.as_str()]) {
            Ok(Fate::Caught(by)) => format!("caught by {by}"),
            Ok(Fate::Skipped(why)) => {
                skipped += 1;
                format!("not run: {why}")
            }
            Ok(Fate::Survived) => {
                bad += 1;
                format!("SURVIVED: {} (cargo test {})", mutant.why, mutant.test)
            }
            Err(e) => {
                bad += 1;
                format!("BROKEN: {e:#}")
            }
        };
        println!("{n:>2} {:<36} {:>4} s  {said}", mutant.name, begun.elapsed().as_secs());
    }
    println!(
        "{} of {} caught, {skipped} not run; logs: {SCRATCH}",
        chosen.len() - bad - skipped,
        chosen.len()
    );
    Ok(ExitCode::from(u8::from(bad > 0)))
}

/// The copy of the tree, with what was built of it.
struct Copy {
    scratch: PathBuf,
    tree: PathBuf,
}

impl Copy {
    /// Makes it like the working tree, changes that are not committed included. What is the same is not touched, so that only
    /// what has changed is built again; a defect that an interrupted run has left goes.
    fn new(root: &Path) -> anyhow::Result<Self> {
        let scratch = root.join(SCRATCH);
        let tree = scratch.join("tree");
        let git = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "-co", "--exclude-standard"])
            .output()?;
        ensure!(git.status.success(), "git ls-files: {}", String::from_utf8_lossy(&git.stderr));
        let names = String::from_utf8(git.stdout)?;
        let wanted: BTreeMap<PathBuf, PathBuf> = names
            .split_terminator('\0')
            .map(|name| (tree.join(name), root.join(name)))
            .filter(|(_, from)| from.is_file())
            .collect();
        for (to, from) in &wanted {
            if fs::read(to).ok() != Some(fs::read(from)?) {
                fs::create_dir_all(to.parent().unwrap_or(&tree))?;
                fs::copy(from, to).with_context(|| to.display().to_string())?;
            }
        }
        let mut directories = vec![tree.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory)? {
                let path = entry?.path();
                if path.is_dir() {
                    directories.push(path);
                } else if !wanted.contains_key(&path) {
                    fs::remove_file(&path)?;
                }
            }
        }
        Ok(Self { scratch, tree })
    }

    /// Runs cargo in the copy; its output stays in a log.
    fn cargo(&self, args: &[&str], patience: Duration, log: &str) -> anyhow::Result<Ended> {
        let log = self.scratch.join(format!("{log}.log"));
        let out = fs::File::create(&log)?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let child = Command::new(cargo)
            .args(args)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", self.scratch.join("target"))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()
            .context("cargo")?;
        let status = wait(child, patience)?;
        Ok((status, String::from_utf8_lossy(&fs::read(&log)?).into_owned()))
    }

    /// Builds and runs tests; how they ended and how long they ran.
    fn test(&self, test: &str, limit: Duration, log: &str) -> anyhow::Result<(Ended, Duration)> {
        let mut args: Vec<&str> = ["test"].into_iter().chain(test.split_whitespace()).collect();
        args.push("--no-run");
        let built = self.cargo(&args, PATIENCE.0, log)?;
        passed(built).context("it does not compile")?;
        args.pop();
        args.extend(["--", "--show-output"]);
        let begun = Instant::now();
        Ok((self.cargo(&args, limit, log)?, begun.elapsed()))
    }

    fn fate(&self, mutant: &Mutant, limit: Duration) -> anyhow::Result<Fate> {
        let path = self.tree.join(&mutant.file);
        let text = fs::read_to_string(&path).with_context(|| mutant.file.display().to_string())?;
        fs::write(&path, mutant.apply(&text)?)?;
        let result = self.test(&mutant.test, limit, &mutant.name);
        fs::write(&path, text)?;
        let ((status, output), _) = result?;
        let Some(status) = status else { return Ok(Fate::Caught("a test that does not end".into())) };
        if status.success() {
            let skipped = output.lines().find(|line| line.starts_with("skipped: "));
            return Ok(skipped.map_or(Fate::Survived, |line| Fate::Skipped(line.to_owned())));
        }
        let failed = output.lines().find_map(|l| l.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(Fate::Caught(failed.unwrap_or("a test program that died").to_owned()))
    }
}

fn passed((status, output): Ended) -> anyhow::Result<()> {
    let tail =
        || output.lines().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
    match status {
        Some(status) if status.success() => Ok(()),
        Some(_) => bail!("it fails:\n{}", tail()),
        None => bail!("it takes too long:\n{}", tail()),
    }
}

/// Waits for the child; kills it and what it has started if it takes too long.
fn wait(mut child: Child, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until {
            let group = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
            // Its own group, by number: fails only if everything in it has ended.
            let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The list cannot rot: what has no place in its file any more is no defect that a test must catch.
    #[test]
    fn every_mutant_applies() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let all = list(&root).unwrap();
        assert!(all.len() >= 30, "only {} mutants", all.len());
        let names: BTreeSet<&str> = all.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names.len(), all.len(), "names are unique: they name the logs");
        for mutant in &all {
            let text = fs::read_to_string(root.join(&mutant.file)).unwrap();
            assert_ne!(mutant.apply(&text).unwrap(), text, "{} changes nothing", mutant.name);
            assert!(mutant.test.starts_with("-p ") && mutant.why.ends_with('.'), "{}", mutant.name);
        }
    }
}
