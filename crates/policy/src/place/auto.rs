//! The course of auto: candidates are tried one after the other, and the one that helps most is kept.

use super::trial::GAIN;
use super::{Impossible, Layout, Measured, Plan, Request, Verdict, judge};

/// A host on which plans are tried: the one that is being placed, or a simulated one.
pub trait Host {
    /// Why it cannot go on.
    type Error;
    /// The host as it stands now.
    ///
    /// # Errors
    /// If it cannot be read.
    fn layout(&mut self) -> Result<Layout, Self::Error>;
    /// Whether this plan may be carried out at all, asked before anything is measured for it.
    ///
    /// # Errors
    /// Why not.
    fn permit(&mut self, _plan: &Plan) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Measures a window.
    ///
    /// # Errors
    /// If it cannot be measured, or was cut short.
    fn measure(&mut self) -> Result<Measured, Self::Error>;
    /// Carries the plan out and lets the host settle.
    ///
    /// # Errors
    /// If it failed; then everything is as before.
    fn carry_out(&mut self, plan: &Plan) -> Result<(), Self::Error>;
    /// Undoes what was carried out last.
    ///
    /// # Errors
    /// If not everything could be put back.
    fn put_back(&mut self) -> Result<(), Self::Error>;
}

/// Who makes plans: [`super::plan`], but for tests of what a bad one would do.
pub type Planner = fn(&Layout, &Request) -> Result<Plan, Impossible>;

/// A plan that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The plan.
    pub plan: Plan,
    /// Two windows without it.
    pub before: [Measured; 2],
    /// One with it.
    pub after: Measured,
    /// What became of it.
    pub verdict: Verdict,
}

/// What auto has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Plans that were tried, in this order.
    pub trials: Vec<Trial>,
    /// Which of them is in force; none: the host is as it was.
    pub kept: Option<usize>,
}

impl Course {
    /// The trial whose plan is in force.
    #[must_use]
    pub fn kept(&self) -> Option<&Trial> {
        self.kept.and_then(|kept| self.trials.get(kept))
    }
}

/// Tries the plans for `requests`. The first one that helps and with which nothing is lost is kept; where something is lost
/// with each of those that help, all are tried, and the one with the most goodput is kept.
///
/// # Errors
/// The host's; what was carried out is undone then.
pub fn auto<H: Host>(host: &mut H, requests: &[Request], planner: Planner) -> Result<Course, H::Error> {
    let mut course = Course::default();
    for request in requests {
        let layout = host.layout()?;
        // Another candidate may be possible.
        let Ok(plan) = planner(&layout, request) else { continue };
        if plan.settings.is_empty() {
            continue;
        }
        host.permit(&plan)?;
        let before = [host.measure()?, host.measure()?];
        host.carry_out(&plan)?;
        let after = match host.measure() {
            Ok(after) => after,
            Err(err) => {
                host.put_back()?;
                return Err(err);
            }
        };
        let verdict = judge(&before[0], &before[1], &after);
        let carries = !after.is_losing();
        // One that is tried later has to be clearly better.
        let so_far = course.kept().map_or(0, |kept| kept.after.goodput);
        let most = after.goodput > so_far.saturating_add(so_far.saturating_mul(GAIN) / 1000);
        course.trials.push(Trial { plan, before, after, verdict });
        if verdict == Verdict::Better && (carries || most) {
            course.kept = Some(course.trials.len() - 1);
            if carries {
                return Ok(course);
            }
        }
        host.put_back()?;
    }
    if let Some(kept) = course.kept() {
        host.carry_out(&kept.plan)?;
    }
    Ok(course)
}
