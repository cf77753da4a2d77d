//! The scheduling class of a thread, asked of the kernel itself: the functions of the same names in musl refuse without
//! asking, and a static weir would poll as a normal thread.

use std::io;

/// Puts thread `tid` (0: the calling one) into `policy`, one of `libc::SCHED_*`, with `priority`: 0, or 1 to 99 for
/// SCHED_FIFO.
///
/// # Errors
/// What the kernel says: EPERM without CAP_SYS_NICE or in a control group without real-time share, ESRCH for a thread that
/// is gone. Nothing has changed then.
pub fn set(tid: i32, policy: i32, priority: i32) -> io::Result<()> {
    let priority = libc::c_int::from(priority);
    // SAFETY: struct sched_param of the kernel is one int, which lives through the call.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Why SCHED_FIFO was refused, with what would help.
#[must_use]
pub fn refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) if !crate::tier::lacking(&[caps::Capability::CAP_SYS_NICE]).is_empty() => {
            "needs CAP_SYS_NICE".into()
        }
        Some(libc::EPERM) => format!("{error}; the cgroup may have no real-time share"),
        _ => error.to_string(),
    }
}

/// The class of the calling thread, one of `libc::SCHED_*`, without the flag that its children have none.
pub fn policy() -> i32 {
    // SAFETY: plain system call on the calling thread, which is there.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) as i32 };
    policy & !libc::SCHED_RESET_ON_FORK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Giving priority up is always permitted, so this needs no root. The thread is the test's own.
    #[test]
    fn a_thread_is_in_the_class_it_was_put_into() {
        std::thread::spawn(|| {
            assert_eq!(policy(), libc::SCHED_OTHER);
            set(0, libc::SCHED_IDLE, 0).unwrap();
            assert_eq!(policy(), libc::SCHED_IDLE);
        })
        .join()
        .unwrap();
        let refused = set(0, libc::SCHED_OTHER, 7).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
