//! One chart as an SVG element: axes, lines and areas by kuva, names beside the lines by hand, because kuva
//! has legends only and a reader should not have to match colours.
//!
//! Colours are CSS variables of [`crate::style`], so that one drawing serves light, dark and print.

use std::sync::Arc;

use kuva::backend::svg::SvgBackend;
use kuva::plot::line::LineStyle;
use kuva::plot::{BandPlot, LinePlot, StackedAreaPlot};
use kuva::render::color::Color;
use kuva::render::layout::{AxisLabelOverlap, ComputedLayout, Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::{Primitive, Scene, TextAnchor, render_multiple};
use kuva::render::theme::Theme;

use crate::format;

/// Size of the text in a chart, in its own units, which are pixels at full size.
const TEXT: u32 = 12;
/// Least distance between two names at the right, in pixels.
const NAME_STEP: f64 = 14.0;

/// Width and height of a chart in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Size {
    pub width: f64,
    pub height: f64,
}

impl Size {
    /// A chart across a page.
    pub const WIDE: Size = Size { width: 760.0, height: 400.0 };
    /// A chart across a phone, or half a page.
    pub const NARROW: Size = Size { width: 380.0, height: 330.0 };
    /// One of many.
    pub const SMALL: Size = Size { width: 200.0, height: 150.0 };
}

/// One axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub label: String,
    pub min: f64,
    pub max: f64,
    pub log: bool,
}

/// How a number stands at a tick.
fn tick(value: f64) -> String {
    if value >= 10_000.0 { format::count(value.round() as u64) } else { format::trimmed(value, 2) }
}

/// A name beside the end of a line.
struct Name {
    text: String,
    color: String,
    bold: bool,
    x: f64,
    y: f64,
}

/// Where a word stands, seen from its place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Left,
    Right,
    Above,
}

/// Something drawn over the plots, once it is known where they lie.
type Mark = Box<dyn Fn(&ComputedLayout) -> Vec<Primitive>>;

/// A chart under construction; x and y are in the units of its axes.
pub(crate) struct Chart {
    size: Size,
    x: Axis,
    y: Axis,
    right: f64,
    top: f64,
    plots: Vec<Plot>,
    names: Vec<Name>,
    /// A line of small text below all.
    foot: String,
    /// Paints the page behind the chart, for a drawing that stands alone.
    has_page: bool,
    /// Primitives in pixels, drawn over the plots.
    marks: Vec<Mark>,
}

/// A text primitive. A dollar sign would start a formula in kuva, which escapes the rest but for control
/// characters.
fn text(x: f64, y: f64, content: &str, size: u32, anchor: TextAnchor, bold: bool, color: &str) -> Primitive {
    Primitive::Text {
        x,
        y,
        content: printable(content).replace('$', "\\$"),
        size,
        anchor,
        rotate: None,
        bold,
        color: Some(Color::from(color)),
    }
}

impl Chart {
    /// A chart with `right` pixels for names beside the lines.
    pub fn new(size: Size, x: Axis, y: Axis, right: f64) -> Chart {
        Chart {
            size,
            x,
            y,
            right,
            top: 14.0,
            plots: Vec::new(),
            names: Vec::new(),
            foot: String::new(),
            has_page: false,
            marks: Vec::new(),
        }
    }

    /// A line; `dash` as in SVG, empty for a solid one.
    pub fn line(&mut self, points: &[(f64, f64)], color: &str, width: f64, dash: &str) {
        let style = if dash.is_empty() { LineStyle::Solid } else { LineStyle::Custom(dash.to_string()) };
        let line = LinePlot::new()
            .with_data(points.to_vec())
            .with_color(color)
            .with_stroke_width(width)
            .with_line_style(style);
        self.plots.push(line.into());
    }

    /// The space between two lines.
    pub fn band(&mut self, points: &[(f64, f64, f64)], color: &str) {
        let column = |pick: fn(&(f64, f64, f64)) -> f64| points.iter().map(pick).collect::<Vec<f64>>();
        let band = BandPlot::new(column(|p| p.0), column(|p| p.1), column(|p| p.2))
            .with_color(color)
            .with_opacity(0.18);
        self.plots.push(band.into());
    }

    /// Shares on top of each other, from the bottom up, each with a thin edge so that it also shows without
    /// colour.
    pub fn stack(&mut self, x: &[f64], series: &[(&str, Vec<f64>)]) {
        let mut area = StackedAreaPlot::new().with_x(x.to_vec()).with_fill_opacity(1.0).with_strokes(false);
        let mut top = vec![0.0; x.len()];
        let mut edges = Vec::new();
        for (color, values) in series {
            area = area.with_series(values.clone()).with_color(*color);
            for (sum, value) in top.iter_mut().zip(values) {
                *sum += value;
            }
            edges.push(x.iter().copied().zip(top.iter().copied()).collect::<Vec<(f64, f64)>>());
        }
        self.plots.push(area.into());
        for edge in edges {
            self.line(&edge, "var(--edge)", 0.6, "");
        }
    }

    /// Round marks at points; hollow ones are void.
    pub fn dots(&mut self, points: &[(f64, f64)], color: &str, radius: f64, hollow: bool) {
        let (points, color) = (points.to_vec(), color.to_string());
        self.marks.push(Box::new(move |layout| {
            let dot = |&(x, y): &(f64, f64)| Primitive::Circle {
                cx: layout.map_x(x),
                cy: layout.map_y(y),
                r: radius,
                fill: Color::from(if hollow { "var(--bg)" } else { color.as_str() }),
                fill_opacity: None,
                stroke: hollow.then(|| Color::from(color.as_str())),
                stroke_width: hollow.then_some(1.2),
            };
            points.iter().map(dot).collect()
        }));
    }

    /// A name at the right of the plot, level with `y` as far as its neighbours allow.
    pub fn name(&mut self, x: f64, y: f64, name: &str, color: &str, bold: bool) {
        let (text, color) = (name.to_string(), color.to_string());
        self.names.push(Name { text, color, bold, x, y });
    }

    /// A dotted upright line with a word at its top or at its bottom, left or right of it.
    pub fn upright(&mut self, x: f64, word: &str, at_top: bool, side: Side) {
        let word = word.to_string();
        self.marks.push(Box::new(move |layout| {
            let (at, top) = (layout.map_x(x), layout.margin_top);
            let bottom = layout.height - layout.margin_bottom;
            let line = Primitive::Line {
                x1: at,
                y1: top,
                x2: at,
                y2: bottom,
                stroke: Color::from("var(--dim)"),
                stroke_width: 1.2,
                stroke_dasharray: Some("2 3".to_string()),
            };
            let y = if at_top { top + 11.0 } else { bottom - 8.0 };
            // A word that would stick out on one side goes to the other.
            let width = 6.5 * word.chars().count() as f64;
            let left = matches!(side, Side::Left) && at - width > layout.margin_left;
            let (dx, anchor) = if left { (-5.0, TextAnchor::End) } else { (5.0, TextAnchor::Start) };
            let words = text(at + dx, y, &word, TEXT - 1, anchor, false, "var(--dim)");
            std::iter::once(line).chain(halo(vec![words])).collect()
        }));
    }

    /// A small word at a place in the plot, with a halo so that it can be read over lines; `side` is the side
    /// of the place on which it stands.
    pub fn word(&mut self, at: (f64, f64), side: Side, word: &str, color: &str) {
        let (word, color) = (word.to_string(), color.to_string());
        self.marks.push(Box::new(move |layout| {
            let (x, y) = (layout.map_x(at.0), layout.map_y(at.1));
            let (x, y, anchor) = match side {
                Side::Left => (x - 10.0, y + 4.0, TextAnchor::End),
                Side::Right => (x + 10.0, y + 4.0, TextAnchor::Start),
                Side::Above => (x, y - 5.0, TextAnchor::Middle),
            };
            halo(vec![text(x, y, &word, TEXT - 1, anchor, false, &color)])
        }));
    }

    /// Words in the left margin, one per y; for charts whose y has no numbers.
    pub fn rows(&mut self, rows: &[(f64, String, bool)]) {
        let rows = rows.to_vec();
        self.marks.push(Box::new(move |layout| {
            let row = |(y, word, bold): &(f64, String, bool)| {
                let (x, y) = (layout.margin_left - 8.0, layout.map_y(*y) + 4.0);
                text(x, y, word, TEXT, TextAnchor::End, *bold, "var(--fg)")
            };
            rows.iter().map(row).collect()
        }));
    }

    /// A solid line from (x1, y1) to (x2, y2).
    pub fn segment(&mut self, from: (f64, f64), to: (f64, f64), color: &str, width: f64) {
        let color = color.to_string();
        self.marks.push(Box::new(move |layout| {
            vec![Primitive::Line {
                x1: layout.map_x(from.0),
                y1: layout.map_y(from.1),
                x2: layout.map_x(to.0),
                y2: layout.map_y(to.1),
                stroke: Color::from(color.as_str()),
                stroke_width: width,
                stroke_dasharray: None,
            }]
        }));
    }

    /// A second x axis above the plot, with marks at these values of the first, the most important ones
    /// first: a mark that would touch an earlier one is left out.
    pub fn upper_axis(&mut self, label: &str, marks: &[(f64, String)]) {
        self.top = 38.0;
        let (label, marks) = (label.to_string(), marks.to_vec());
        self.marks.push(Box::new(move |layout| {
            let top = layout.margin_top;
            let end = layout.width - layout.margin_right;
            let mut out =
                vec![text(end + 18.0, top - 7.0, &label, TEXT - 1, TextAnchor::Start, false, "var(--dim)")];
            let mut taken: Vec<(f64, f64)> = Vec::new();
            for (value, word) in &marks {
                let x = layout.map_x(*value);
                let half = 3.5 * word.chars().count() as f64 + 3.0;
                let is_inside = (layout.margin_left - 1.0..=end + 1.0).contains(&x);
                if !is_inside || taken.iter().any(|(at, other)| (x - at).abs() < half + other) {
                    continue;
                }
                taken.push((x, half));
                out.push(Primitive::Line {
                    x1: x,
                    y1: top - 4.0,
                    x2: x,
                    y2: top,
                    stroke: Color::from("var(--axis)"),
                    stroke_width: 1.0,
                    stroke_dasharray: None,
                });
                out.push(text(x, top - 7.0, word, TEXT - 1, TextAnchor::Middle, false, "var(--dim)"));
            }
            out
        }));
    }

    /// Makes the chart stand alone: with a page behind it and a line of small text below it.
    pub fn alone(&mut self, foot: &str) {
        self.has_page = true;
        self.foot = foot.to_string();
    }

    /// The chart as an SVG element. `id` must be unique on its page; `title` and `description` are for screen
    /// readers.
    pub fn svg(self, id: &str, title: &str, description: &str) -> String {
        let has_numbers = !self.y.label.is_empty() || self.size.height <= Size::SMALL.height;
        let small = self.size.width <= Size::SMALL.width;
        let left = match (has_numbers, small) {
            (true, true) => 34.0,
            (true, false) => 56.0,
            // Rows have words, not numbers.
            (false, _) => 130.0,
        };
        let foot = if self.foot.is_empty() { 0.0 } else { 22.0 };
        let bottom = foot + if self.x.label.is_empty() { 24.0 } else { 42.0 };
        let mut layout = Layout::new((self.x.min, self.x.max), (self.y.min, self.y.max))
            .with_width(self.size.width)
            .with_height(self.size.height)
            .with_x_axis_min(self.x.min)
            .with_x_axis_max(self.x.max)
            .with_y_axis_min(self.y.min)
            .with_y_axis_max(self.y.max)
            .with_force_margins(left, self.right)
            .with_force_margins_y(self.top, bottom)
            .with_x_tick_format(TickFormat::Custom(Arc::new(tick)))
            .with_y_tick_format(TickFormat::Custom(Arc::new(tick)))
            .with_x_label_overlap(AxisLabelOverlap::Thin)
            .with_tick_size(TEXT - 1)
            .with_label_size(TEXT)
            .with_axis_line_width(1.0)
            .with_grid_line_width(0.8)
            .with_theme(theme());
        if small {
            layout = layout.with_ticks(3);
        }
        if self.x.log {
            layout = layout.with_log_x();
        }
        if self.y.log {
            layout = layout.with_log_y();
        }
        if !self.x.label.is_empty() {
            layout = layout.with_x_label(self.x.label.as_str()).with_x_label_offset(0.0, -foot);
        }
        if has_numbers {
            if !self.y.label.is_empty() {
                layout = layout.with_y_label(self.y.label.as_str());
            }
        } else {
            layout.suppress_y_ticks = true;
        }
        let computed = ComputedLayout::from_layout(&layout);
        debug_assert!(!self.plots.is_empty(), "kuva draws no axes without a plot");
        let mut scene = render_multiple(self.plots, layout);
        // Everything lies inside the axes. kuva numbers its clip paths through the whole process, which would
        // make two drawings of one document differ.
        scene.defs.clear();
        scene.elements.retain(|element| !matches!(element, Primitive::ClipStart { .. } | Primitive::ClipEnd));
        for mark in &self.marks {
            for primitive in mark(&computed) {
                scene.add(primitive);
            }
        }
        if foot > 0.0 {
            let (x, y) = (self.size.width - 12.0, self.size.height - 10.0);
            scene.add(text(x, y, &self.foot, TEXT - 1, TextAnchor::End, false, "var(--dim)"));
        }
        if self.has_page {
            scene.background_color = Some("var(--bg)".to_string());
        }
        for primitive in place_names(&self.names, &computed) {
            scene.add(primitive);
        }
        wrap(&scene, id, title, description)
    }
}

/// `primitives` with an outline in the colour of the page behind them.
fn halo(primitives: Vec<Primitive>) -> Vec<Primitive> {
    let attributes = r#"paint-order="stroke" stroke="var(--bg)" stroke-width="3" stroke-linejoin="round""#;
    let open =
        Primitive::GroupStart { transform: None, title: None, extra_attrs: Some(attributes.to_string()) };
    std::iter::once(open).chain(primitives).chain(std::iter::once(Primitive::GroupEnd)).collect()
}

/// Names at the right margin, pushed apart until none covers another, with a thin line back to where each
/// belongs.
fn place_names(names: &[Name], layout: &ComputedLayout) -> Vec<Primitive> {
    let (top, bottom) = (layout.margin_top + 4.0, layout.height - layout.margin_bottom);
    let mut order: Vec<(f64, &Name)> =
        names.iter().map(|name| (layout.map_y(name.y).clamp(top, bottom), name)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted: Vec<f64> = order.iter().map(|(y, _)| *y).collect();
    let places = spread_out(&wanted, top, bottom);
    let x = layout.width - layout.margin_right + 16.0;
    let mut out = Vec::new();
    for ((_, name), y) in order.iter().zip(places) {
        out.push(Primitive::PolyLine {
            points: vec![(layout.map_x(name.x) + 1.0, layout.map_y(name.y)), (x - 10.0, y), (x - 3.0, y)],
            stroke: Color::from(name.color.as_str()),
            stroke_width: 0.7,
            stroke_dasharray: None,
        });
        out.push(text(x, y + 4.0, &name.text, TEXT, TextAnchor::Start, name.bold, &name.color));
    }
    out
}

/// Moves ascending places apart to [`NAME_STEP`], as little as it takes, and keeps them within `top` and
/// `bottom` as far as there is room.
fn spread_out(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    // Places that touch become a block, which stands around the mean of what its members want.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for &place in wanted {
        blocks.push((place, 1));
        while let [.., (above, n), (below, m)] = blocks[..] {
            let reach = NAME_STEP * (n + m) as f64 / 2.0;
            if below - above >= reach {
                break;
            }
            // A block's middle is the mean of its members' wishes, so members' weights are their numbers.
            let middle = (above * n as f64 + below * m as f64) / (n + m) as f64;
            blocks.truncate(blocks.len() - 2);
            blocks.push((middle, n + m));
        }
    }
    let mut places: Vec<f64> = blocks
        .iter()
        .flat_map(|(middle, n)| {
            (0..*n).map(move |i| middle + NAME_STEP * (i as f64 - (*n as f64 - 1.0) / 2.0))
        })
        .collect();
    let mut ceiling = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(ceiling);
        ceiling = *place - NAME_STEP;
    }
    let mut floor = top;
    for place in &mut places {
        *place = place.max(floor);
        floor = *place + NAME_STEP;
    }
    places
}

/// The colours of axes and text.
fn theme() -> Theme {
    let mut theme = Theme::light();
    theme.background = "none".to_string();
    theme.axis_color = "var(--axis)".to_string();
    theme.grid_color = "var(--grid)".to_string();
    theme.tick_color = "var(--axis)".to_string();
    theme.text_color = "var(--dim)".to_string();
    theme
}

/// The scene as an element that scales with its page and has words for those who cannot see it.
fn wrap(scene: &Scene, id: &str, title: &str, description: &str) -> String {
    let svg = SvgBackend::new().render_scene(scene);
    // The opening tag of kuva has a fixed size and no name.
    let body = svg.split_once('>').map_or("", |(_, rest)| rest);
    let (width, height) = (scene.width, scene.height);
    let (title, description) = (escape(title), escape(description));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\" fill=\"var(--dim)\" \
         font-family=\"system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif\">\
         <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{description}</desc>{body}"
    )
}

/// Text without control characters, which XML does not allow even escaped.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Text as it may stand in XML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_do_not_touch_stay() {
        assert_eq!(spread_out(&[10.0, 50.0, 90.0], 0.0, 100.0), [10.0, 50.0, 90.0]);
    }

    #[test]
    fn names_at_one_place_stand_around_it() {
        assert_eq!(spread_out(&[50.0, 50.0, 50.0], 0.0, 100.0), [36.0, 50.0, 64.0]);
    }

    proptest! {
        #[test]
        fn names_never_cover_each_other(mut wanted in prop::collection::vec(0.0..300.0_f64, 1..20)) {
            wanted.sort_by(f64::total_cmp);
            let places = spread_out(&wanted, 0.0, 300.0);
            prop_assert_eq!(places.len(), wanted.len());
            for pair in places.windows(2) {
                prop_assert!(pair[1] - pair[0] >= NAME_STEP - 1e-9, "{:?}", places);
            }
            prop_assert!(places[0] >= 0.0 && places[places.len() - 1] <= 300.0 + 1e-9, "{:?}", places);
        }
    }

    #[test]
    fn text_is_escaped_and_a_dollar_is_a_dollar() {
        let axis = || Axis { label: "a".into(), min: 1.0, max: 10.0, log: true };
        let mut chart = Chart::new(Size::NARROW, axis(), axis(), 60.0);
        chart.line(&[(1.0, 1.0), (10.0, 5.0)], "var(--weir)", 1.0, "");
        chart.name(10.0, 5.0, "<b>$x^2$ & \"y\"", "var(--weir)", true);
        let svg = chart.svg("c", "<t>", "d & e");
        assert!(svg.contains("&lt;b&gt;$x^2$ &amp; &quot;y&quot;"), "{svg}");
        assert!(svg.contains("&lt;t&gt;</title>") && !svg.contains("<b>"));
    }

    #[test]
    fn two_drawings_are_the_same_bytes() {
        let draw = || {
            let axis = || Axis { label: "a".into(), min: 0.0, max: 10.0, log: false };
            let mut chart = Chart::new(Size::WIDE, axis(), axis(), 60.0);
            chart.line(&[(0.0, 1.0), (10.0, 9.0)], "var(--weir)", 2.0, "4 2");
            chart.stack(&[0.0, 10.0], &[("var(--good)", vec![1.0, 2.0])]);
            chart.svg("c", "t", "d")
        };
        assert_eq!(draw(), draw());
    }
}
