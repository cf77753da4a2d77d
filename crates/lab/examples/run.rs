//! Runs an experiment from the source tree: `run NAME key=value...`, for developers of the lab.
#![allow(clippy::unwrap_used)]
use std::time::Duration;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut o = lab::Options::default();
    for arg in &args[2..] {
        let (k, v) = arg.split_once('=').unwrap();
        match k {
            "quick" => o.quick = v == "1",
            "arms" => o.arms = Some(v.split(',').map(String::from).collect()),
            "hogs" => o.hogs = Some(v.split(',').map(|h| h.parse().unwrap()).collect()),
            "repeat" => o.repeat = Some(v.parse().unwrap()),
            "ms" => o.duration = Some(Duration::from_millis(v.parse().unwrap())),
            "weir" => o.weir = Some(v.into()),
            "base" => o.base_pps = Some(v.parse().unwrap()),
            "mult" => o.multiples = Some(v.split(',').map(|h| h.parse().unwrap()).collect()),
            "pairs" => o.pairs = Some(v.parse().unwrap()),
            "onsets" => o.onsets = Some(v.parse().unwrap()),
            "consumer" => o.consumer = lab::Kind::named(v).unwrap(),
            "reserves" => o.reserves = v.split(',').map(|h| h.parse().unwrap()).collect(),
            "guard" => o.guard = v.split(' ').map(String::from).collect(),
            _ => panic!("{k}"),
        }
    }
    let start = std::time::Instant::now();
    let d = lab::run(&args[1], &o, &mut |p| {
        eprint!(
            "{}",
            if p.done % 20 == 0 { format!("{}/{} {}\n", p.done, p.total, p.text) } else { String::new() }
        )
    });
    eprintln!("\r\x1b[K{:?}", start.elapsed());
    match d {
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(3)
        }
        Ok(d) => {
            d.write(std::path::Path::new("/tmp/lab.json")).unwrap();
            println!("{}\n{}", results::table(&d), results::claims(&d));
        }
    }
}
