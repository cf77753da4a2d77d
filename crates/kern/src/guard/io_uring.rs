//! An io_uring that polls one NAPI by its id (static tracking, 6.13): a handle that no packet has to mark.
//!
//! `io_uring_enter` that waits for a completion which never comes runs the driver's poll function first, at most 8 packets each
//! time, twice or until its time is over. The kernel fixes that budget, and the end of a call costs 20 us, a
//! timer and a switch of threads: so a turn of more than two polls is made of calls that take their time.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Packets of a short call: two polls of BUSY_POLL_BUDGET each.
pub const PER_CALL: u32 = 16;
/// Its time, us: the kernel takes one that is over before it has begun for none at all.
const SHORT_US: u32 = 4;
/// Time of the polls of a longer call, us.
const LONG_US: u32 = 32;
/// Packets that a turn is to have per longer call: what is shed in that time. Of packets that are handed up it takes fewer.
pub const PER_LONG_CALL: u32 = 128;

const IORING_REGISTER_NAPI: libc::c_uint = 27;
const NAPI_REGISTER: u8 = 0;
const NAPI_STATIC_ADD_ID: u8 = 1;
const TRACKING_STATIC: u32 = 1;
const IORING_ENTER_GETEVENTS: libc::c_uint = 1;
const IORING_ENTER_EXT_ARG: libc::c_uint = 1 << 3;

/// `struct io_uring_napi`.
#[repr(C)]
#[derive(Default)]
struct Napi {
    busy_poll_to: u32,
    prefer_busy_poll: u8,
    opcode: u8,
    pad: [u8; 2],
    op_param: u32,
    resv: u32,
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct Wait {
    sigmask: u64,
    sigmask_sz: u32,
    min_wait_usec: u32,
    ts: u64,
}

/// One that polls the NAPI `id` with preferred busy polling.
///
/// # Errors
/// `EINVAL` before 6.13, `EPERM` where io_uring is disabled.
pub fn open(id: u32) -> io::Result<OwnedFd> {
    // struct io_uring_params is 120 bytes; all zero asks for nothing special.
    let mut params = [0u64; 15];
    // SAFETY: the kernel reads and writes 120 bytes of `params`.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let io_uring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mode = Napi {
        busy_poll_to: LONG_US,
        prefer_busy_poll: 1,
        opcode: NAPI_REGISTER,
        op_param: TRACKING_STATIC,
        ..Napi::default()
    };
    register(&io_uring, mode)?;
    register(&io_uring, Napi { opcode: NAPI_STATIC_ADD_ID, op_param: id, ..Napi::default() })?;
    Ok(io_uring)
}

fn register(io_uring: &OwnedFd, mut napi: Napi) -> io::Result<()> {
    // SAFETY: the kernel reads and writes one `Napi`, which lives through the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            io_uring.as_raw_fd(),
            IORING_REGISTER_NAPI,
            &raw mut napi,
            1,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One call: about [`PER_CALL`] packets, or those of the time of a `long` one. False if `fd` is no io_uring, or a signal is
/// pending.
pub fn poll(fd: BorrowedFd<'_>, long: bool) -> bool {
    let time = [0i64, 1000 * i64::from(if long { LONG_US } else { SHORT_US })];
    let wait = Wait { sigmask: 0, sigmask_sz: 0, min_wait_usec: 0, ts: time.as_ptr() as u64 };
    // SAFETY: `wait` and the time it points to live through the call, which writes nothing.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_io_uring_enter,
            fd.as_raw_fd(),
            0,
            1,
            IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
            &raw const wait,
            size_of::<Wait>(),
        )
    };
    rc >= 0 || io::Error::last_os_error().raw_os_error() == Some(libc::ETIME)
}
