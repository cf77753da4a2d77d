//! The picture of collapse and cure for the README: the stock arms and weir, without hogs, as one SVG file.

use crate::chart::Size;
use crate::document::{Backend, Document, Role};
use crate::{captions, figures, stats, style, table};

/// A standalone SVG file, light and dark, whose description says the result in words; `None` if the document
/// has no stock arm or no arm weir to draw.
pub fn picture(document: &Document) -> Option<String> {
    let hogs = table::hog_counts(document).first().copied()?;
    let arms: Vec<_> = figures::shown(document, hogs)
        .into_iter()
        .filter(|arm| matches!(arm.role, Role::Stock | Role::Weir) && !stats::curve(arm, hogs).is_empty())
        .collect();
    let has = |role: Role| arms.iter().any(|arm| arm.role == role);
    if !has(Role::Stock) || !has(Role::Weir) {
        return None;
    }
    let size = Size { width: 760.0, height: 380.0 };
    let mut chart = figures::goodput_chart(document, hogs, &arms, size)?;
    let machine = document.machine.as_ref();
    let system =
        machine.map_or(String::new(), |machine| format!(", Linux {}, {} CPUs", machine.kernel, machine.cpus));
    let maker = match document.backend {
        Backend::Kernel => "made by weir lab",
        Backend::Sim => "simulated by weir sim",
    };
    // The day is enough; the run itself is in the report.
    let day = document.started.as_ref().and_then(|started| started.get(..10));
    let day = day.map_or(String::new(), |day| format!(", {day}"));
    chart.alone(&format!("{}{system}{day}; {maker}", document.experiment));
    let words = captions::goodput(document, hogs)?;
    let title = "Datagrams read by a program, over the rate at which they arrive: stock Linux and weir";
    Some(style::standalone(&chart.svg("picture", title, &words)) + "\n")
}
