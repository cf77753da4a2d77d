//! Draws a document, to be looked at: that of a file, or the synthetic one of the tests.
//!
//! `cargo run -p weir-results --example draw FOLDER [FILE.json]` writes `NAME.json`, `NAME.html`, `NAME.svg`
//! and `NAME.txt` to the folder.

#[path = "../tests/synthetic/mod.rs"]
mod synthetic;

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("name a folder to write to")?);
    let (name, document) = match arguments.next() {
        None => ("synthetic".to_string(), synthetic::livelock_udp()),
        Some(file) => {
            let mut document = results::Document::read(Path::new(&file))?;
            document.finish(&[]);
            (document.experiment.clone(), document)
        }
    };
    let file = |kind: &str| folder.join(format!("{name}.{kind}"));
    document.write(&file("json"))?;
    results::write_html(&document, &file("html"))?;
    if let Some(picture) = results::picture(&document) {
        std::fs::write(file("svg"), picture)?;
    }
    let table = results::table(&document);
    std::fs::write(file("txt"), &table)?;
    print!("{table}");
    Ok(())
}
