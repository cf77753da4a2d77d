//! The one loud sender of a stream of frames, and who is quiet beside it (MR-34).
//!
//! The vote itself is the C header `src/c/vote.h`, since the packet path must count it; this module is its mirror.
//!
//! # Properties
//! - A sender alone is never quiet, nor are several that are alike; who sends little beside one that sends most of all is.
//! - Whoever was loud before: who is alone now is no longer quiet after 16 frames.

unsafe extern "C" {
    fn weir_host_is_quiet(vote: *mut Vote, sender: u64) -> u32;
}

/// Of one stream: `struct weir_vote`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Vote {
    loudest: u32,
    votes: u32,
}
const _: () = assert!(size_of::<Vote>() == 8);

impl Vote {
    /// A frame of `sender` has come, an IPv4 address or the first half of an IPv6 one: true if it is a quiet one beside one that
    /// sends more than eight in nine of all frames.
    pub fn is_quiet(&mut self, sender: u64) -> bool {
        // SAFETY: only this struct is written, whose layout is that of the header.
        unsafe { weir_host_is_quiet(self, sender) != 0 }
    }
}
