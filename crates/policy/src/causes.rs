//! Why a source is taken over, refused, or given back: one type each, and the sentence that the status shows for it.

use crate::load::Load;
use crate::switch::Evidence;
use std::fmt;

/// The sign of overload for which a source is taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel's polls of it were full several times in a row.
    FullPolls,
    /// Another source of its device is polled, under settings of the device.
    Companion,
    /// Consumers overflow, and it carries what they get.
    Overflow,
    /// They overflow by a little, again and again, and it carries what they get.
    Trickle,
    /// Consumers overflow, no NAPI carries packets, and its interface receives most.
    Bypassed,
    /// Softirqs take more of its CPU than the budget while programs want it.
    Budget,
    /// Packets arrive, and net CPUs poll.
    Arrives,
    /// The set of net CPUs has changed, and another one was to poll it.
    Resized,
}

impl Cause {
    /// What it says to the mode switch: bulk TCP fills polls too, so these alone are no harm.
    pub fn evidence(self) -> Evidence {
        match self {
            Self::FullPolls | Self::Companion | Self::Arrives | Self::Resized => Evidence::FullPolls,
            Self::Overflow | Self::Trickle | Self::Bypassed | Self::Budget => Evidence::Harm,
        }
    }

    /// True if it says only that packets arrive: it counts where frames are counted, which tells bulk TCP from a flood.
    pub fn by_polls(self) -> bool {
        matches!(self, Self::FullPolls | Self::Arrives | Self::Resized)
    }

    /// True if it says only that sockets overflow, which bulk TCP beside them may explain.
    pub fn by_sockets(self) -> bool {
        matches!(self, Self::Overflow | Self::Trickle)
    }

    /// True if the source is watched for this load, which explains it, or beside which it is no overload.
    pub fn may_be(self, load: Load) -> bool {
        match load {
            Load::Bulk => self.by_polls() || self.by_sockets(),
            Load::Unknown => matches!(self, Self::FullPolls | Self::Budget),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FullPolls => "its polls are full",
            Self::Companion => "another source of its device is polled",
            Self::Overflow => "a consumer overflows",
            Self::Trickle => "a consumer overflows by a little, again and again",
            Self::Bypassed => "a consumer overflows, past the NAPI",
            Self::Budget => "its softirq takes more than the budget from programs",
            Self::Arrives => "its packets are a net CPU's",
            Self::Resized => "the net CPUs are more or fewer now",
        })
    }
}

/// What a takeover failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The handle could not learn the id of its NAPI.
    Unmarked,
    /// A setting was refused.
    Setting,
    /// No turn polled.
    NoTurn,
    /// Anything else.
    Other,
}

/// What takes the place of polling for the whole interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The kernel's own threads poll it: mode thread.
    Thread,
}

/// Why a source is given back to interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Its ring was found empty for long enough.
    Calm,
    /// Few packets arrive: its net CPU sleeps.
    Rests,
    /// Shedding alone keeps its CPU free: the kernel polls it, and the gate stays.
    Sheds,
    /// Nothing was shed for long enough: the gate is not needed any more.
    Spared,
    /// The guard ends.
    Stops,
    /// Its interface is gone or down.
    Gone,
    /// Its handle belongs to a NAPI that is gone.
    Stale,
    /// It carries what polling does no good.
    Load(Load),
    /// Its driver lets interrupts in while it is polled.
    Leaks,
    /// The keeper has put its settings back, because the guard stood still.
    Revoked,
    /// Its poller does not run, and others do.
    Stuck,
    /// Its frames are not counted, so that bulk TCP would look like a flood.
    Uncounted,
    /// Its poller does not run on its CPU any more: that one is offline, or somebody has moved the thread.
    Moved,
    /// Another net CPU is to poll it.
    Resized,
}

impl Release {
    /// The same of a source whose XDP program is going, since it was judged to carry what the gate knows nothing of: without a gate
    /// nothing is shed, and that it seems calm by then is no reason to forget the judgement.
    #[must_use]
    pub fn without_gate(self) -> Self {
        match self {
            Self::Calm | Self::Rests | Self::Sheds => Self::Load(Load::Unknown),
            _ => self,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calm => "the ring stays empty",
            Self::Rests => "few packets arrive: the net CPU sleeps",
            Self::Sheds => "shedding alone will do: the kernel polls, and the gate stays",
            Self::Spared => "next to nothing is shed any more",
            Self::Stops => "weir stops",
            Self::Gone => "its interface is gone",
            Self::Stale => "stale_source: its turns poll nothing",
            Self::Load(Load::Bulk) => "bulk TCP, which slows itself down",
            Self::Load(Load::Unknown) => "nothing is known that could be shed: left to the kernel",
            Self::Leaks => "the driver keeps its interrupts on",
            Self::Stuck => "its poller does not run",
            Self::Uncounted => "its frames are not counted: full polls may be bulk TCP",
            Self::Moved => "its poller is not on its CPU any more",
            Self::Resized => "another net CPU polls it",
            Self::Revoked => "this process stood still, and the keeper has put its settings back",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gate_calm_is_no_reason() {
        for why in [Release::Calm, Release::Rests, Release::Sheds] {
            assert_eq!(why.without_gate(), Release::Load(Load::Unknown));
        }
        for why in [Release::Gone, Release::Stale, Release::Revoked, Release::Load(Load::Bulk)] {
            assert_eq!(why.without_gate(), why);
        }
    }

    #[test]
    fn only_what_takes_from_programs_is_harm() {
        for (cause, harm, bulk) in [
            (Cause::FullPolls, Evidence::FullPolls, true),
            (Cause::Companion, Evidence::FullPolls, false),
            (Cause::Overflow, Evidence::Harm, true),
            (Cause::Trickle, Evidence::Harm, true),
            (Cause::Bypassed, Evidence::Harm, false),
            (Cause::Budget, Evidence::Harm, false),
            (Cause::Arrives, Evidence::FullPolls, true),
        ] {
            assert_eq!((cause.evidence(), cause.may_be(Load::Bulk)), (harm, bulk), "{cause}");
            let unknown = matches!(cause, Cause::FullPolls | Cause::Budget);
            assert_eq!(cause.may_be(Load::Unknown), unknown, "{cause}");
        }
    }

    #[test]
    fn every_reason_has_its_sentence() {
        // The status and its readers know these words.
        let told = [
            Release::Calm,
            Release::Stops,
            Release::Gone,
            Release::Stale,
            Release::Load(Load::Bulk),
            Release::Leaks,
        ];
        assert_eq!(
            told.map(|r| r.to_string()),
            [
                "the ring stays empty",
                "weir stops",
                "its interface is gone",
                "stale_source: its turns poll nothing",
                "bulk TCP, which slows itself down",
                "the driver keeps its interrupts on",
            ]
        );
    }
}
