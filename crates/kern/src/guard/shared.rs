//! A BPF array map, mapped into this process, or memory that stands for one.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// All elements of an mmapable BPF array map whose value type is `T`.
///
/// Reads and writes go to the kernel's own memory without a system call. `T` must consist of atomics, since BPF
/// programs write concurrently.
pub struct Shared<T> {
    start: NonNull<T>,
    len: usize,
    bytes: usize,
}

// SAFETY: the memory is shared with the kernel in any case and `T` consists of atomics (see `Shared::map`).
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T: Sync> Shared<T> {
    /// Maps `len` elements of the map behind `fd`.
    ///
    /// # Safety
    /// The map must be a BPF_F_MMAPABLE array with at least `len` values of exactly `T`'s layout, and `T` must
    /// consist of atomics.
    pub unsafe fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        // SAFETY: as the caller promises.
        unsafe { Self::new(Some(fd), len) }
    }

    /// `len` elements of zeroed memory that no BPF program writes to.
    ///
    /// # Safety
    /// `T` must consist of atomics.
    pub unsafe fn unwatched(len: usize) -> io::Result<Self> {
        // SAFETY: all-zero atomics are valid.
        unsafe { Self::new(None, len) }
    }

    /// # Safety
    /// That of [`Self::map`], or of [`Self::unwatched`] without a map.
    unsafe fn new(fd: Option<BorrowedFd<'_>>, len: usize) -> io::Result<Self> {
        // SAFETY: plain system call; the result is checked.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let bytes = (len * size_of::<T>()).next_multiple_of(page);
        // SAFETY: a new mapping chosen by the kernel; nothing else is touched.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | if fd.is_none() { libc::MAP_ANONYMOUS } else { 0 },
                fd.map_or(-1, |fd| fd.as_raw_fd()),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast::<T>())
            .map(|start| Self { start, len, bytes })
            .ok_or_else(|| io::Error::other("mmap returned address 0"))
    }
}

impl<T> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` values for as long as `self` lives (see `map`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length and nobody can hold a reference into it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
