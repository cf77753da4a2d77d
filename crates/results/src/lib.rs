//! Results of the lab and of the simulator: the `weir.lab/1` document, the statistics over it, the claims,
//! the terminal table, the HTML report, the README picture and the comparison of two runs.
//!
//! Who measures makes a [`Point`] of its trials with [`Point::fold`], collects points in [`Arm`]s of a
//! [`Document`], and calls [`Document::finish`], which fills in all that follows from them. What is finished can
//! be written ([`Document::write`], [`write_html`]), printed ([`table()`]), drawn ([`picture()`]) and compared
//! ([`compare()`]).
//!
//! Nothing here measures, reads a clock or needs a privilege: the same document always gives the same bytes.

mod captions;
mod chart;
mod compare;
mod document;
mod figures;
mod fold;
mod format;
mod html;
pub mod markdown;
mod measure;
mod panel;
mod picture;
pub mod stats;
mod style;
mod table;
mod verdict;

pub use compare::{Compared, Comparison, Likeness, May, Row, Tolerances, Values, compare};
pub use document::*;
pub use html::{html, write_html};
pub use measure::*;
pub use panel::*;
pub use picture::picture;
pub use table::{claims, table};
pub use verdict::{AT_THE_NIC, Id, Lead, SHED, judge, leads};
