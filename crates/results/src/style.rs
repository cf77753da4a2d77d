//! Colours. One colour, one meaning: cyan weir, red lost, yellow shed, magenta kernel packet time; arms that
//! are not weir have colours of their own only to tell them apart, and each line has its name beside it.

use crate::document::{Arm, Role};

/// A colour variable with its value on a light page, on a dark page, and in print.
pub(crate) struct Variable {
    pub name: &'static str,
    pub light: &'static str,
    pub dark: &'static str,
    pub print: &'static str,
}

const fn variable(
    name: &'static str,
    light: &'static str,
    dark: &'static str,
    print: &'static str,
) -> Variable {
    Variable { name, light, dark, print }
}

/// All variables that charts and page use.
pub(crate) const VARIABLES: [Variable; 28] = [
    variable("--bg", "#ffffff", "#0f151b", "#ffffff"),
    variable("--fg", "#1b2329", "#e6ebf0", "#000000"),
    variable("--dim", "#5b6670", "#9aa7b3", "#333333"),
    variable("--axis", "#9aa5ae", "#4b5a68", "#555555"),
    variable("--grid", "#e8ebee", "#1f2933", "#dddddd"),
    variable("--edge", "#fefefe", "#0f151a", "#000000"),
    variable("--weir", "#00808f", "#37cbdd", "#000000"),
    variable("--stock", "#2d353c", "#c6cfd8", "#444444"),
    variable("--stock2", "#6a747d", "#8c98a4", "#777777"),
    variable("--arm1", "#3c6db4", "#7aa7ec", "#555555"),
    variable("--arm2", "#7c57a8", "#b595e2", "#666666"),
    variable("--arm3", "#68792a", "#b3c46c", "#777777"),
    variable("--arm4", "#98653c", "#d7a478", "#888888"),
    variable("--arm5", "#8a8f94", "#737d87", "#999999"),
    variable("--good", "#a9bccb", "#4f6676", "#e6e6e6"),
    variable("--shed", "#e8bd1c", "#d8b232", "#ffffff"),
    variable("--ring", "#f4c4bb", "#6f342d", "#cccccc"),
    variable("--backlog", "#e58d7e", "#9c463b", "#a0a0a0"),
    variable("--stack", "#d0604f", "#c65f4f", "#808080"),
    variable("--socket", "#a8291c", "#f19083", "#505050"),
    variable("--lost", "#8d1d12", "#f7b0a6", "#303030"),
    variable("--irq", "#74275f", "#9a4a86", "#303030"),
    variable("--softirq", "#bb569f", "#cf74b6", "#606060"),
    variable("--poller", "#2ba5b4", "#2aa5b6", "#8a8a8a"),
    variable("--hog", "#cfc8bb", "#605a50", "#b8b8b8"),
    variable("--idle", "#f3f5f6", "#18212a", "#ffffff"),
    variable("--bad", "#b3261e", "#ff8a80", "#000000"),
    variable("--panel", "#f6f8f9", "#151d25", "#ffffff"),
];

/// Colour and dash of an arm's line. Arms of the same kind differ in both, so that print without colour tells
/// them apart.
pub(crate) fn arm_line(arms: &[Arm], arm: &Arm) -> (&'static str, &'static str) {
    let nth = |role: fn(Role) -> bool| {
        arms.iter().filter(|other| role(other.role)).position(|other| other.name == arm.name).unwrap_or(0)
    };
    match arm.role {
        Role::Weir => ("var(--weir)", ""),
        Role::Stock => [("var(--stock)", ""), ("var(--stock2)", "7 3"), ("var(--stock)", "2 2")]
            [nth(|r| r == Role::Stock) % 3],
        Role::Control => ("var(--arm5)", "1 3"),
        Role::Ablation | Role::Variant => {
            let dashes = ["8 3", "4 3", "2 3", "8 3 2 3"];
            ("var(--weir)", dashes[nth(|r| matches!(r, Role::Ablation | Role::Variant)) % 4])
        }
        Role::Alternative | Role::Shown => {
            const LINES: [(&str, &str); 4] = [
                ("var(--arm1)", "9 3"),
                ("var(--arm2)", "5 2 1 2"),
                ("var(--arm3)", "3 2"),
                ("var(--arm4)", "9 3 2 3"),
            ];
            LINES[nth(|r| matches!(r, Role::Alternative | Role::Shown)) % 4]
        }
    }
}

/// Colour of a place of the ledger.
pub(crate) fn place(place: &str) -> &'static str {
    match place {
        "delivered" => "var(--good)",
        "shed" => "var(--shed)",
        "ring" | "wire" => "var(--ring)",
        "backlog" => "var(--backlog)",
        "stack" => "var(--stack)",
        "socket" | "output" | "queue" => "var(--socket)",
        _ => "var(--lost)",
    }
}

/// The variables as CSS: light by default, dark where the reader asks for it, grey in print.
pub(crate) fn css() -> String {
    let block = |pick: fn(&Variable) -> &'static str| {
        VARIABLES.iter().map(|v| format!("{}:{};", v.name, pick(v))).collect::<String>()
    };
    let (light, dark, print) = (block(|v| v.light), block(|v| v.dark), block(|v| v.print));
    format!(
        ":root{{color-scheme:light dark;{light}}}\n\
         @media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n\
         @media print{{:root{{color-scheme:light;{print}}}}}\n"
    )
}

/// A drawing that uses the variables as one that stands alone: the light values in place, so that every
/// viewer shows it, and rules that turn them dark where the reader asks for it.
pub(crate) fn standalone(svg: &str) -> String {
    let mut svg = svg.to_string();
    let mut rules = String::new();
    for v in &VARIABLES {
        let variable = format!("var({})", v.name);
        if svg.contains(&variable) {
            svg = svg.replace(&variable, v.light);
            for attribute in ["fill", "stroke"] {
                rules += &format!("[{attribute}=\"{}\"]{{{attribute}:{}}}", v.light, v.dark);
            }
        }
    }
    let style = format!("<style>@media (prefers-color-scheme:dark){{{rules}}}</style>");
    match svg.find("<title") {
        Some(at) => format!("{}{style}{}", &svg[..at], &svg[at..]),
        None => svg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_light_value_is_its_own() {
        // The standalone picture finds its colours by their light value.
        for pick in [|v: &Variable| v.light, |v: &Variable| v.name] {
            let mut values: Vec<&str> = VARIABLES.iter().map(pick).collect();
            values.sort_unstable();
            values.dedup();
            assert_eq!(values.len(), VARIABLES.len());
        }
    }

    #[test]
    fn places_of_the_ledger_have_variables() {
        for name in ["delivered", "shed", "ring", "wire", "backlog", "stack", "socket", "other"] {
            let color = place(name);
            let known = VARIABLES.iter().any(|v| color == format!("var({})", v.name));
            assert!(known, "{color}");
        }
    }
}
