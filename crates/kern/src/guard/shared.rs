//! A BPF array map, mapped into this process.

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
        // SAFETY: plain system call; the result is checked.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let bytes = (len * size_of::<T>()).next_multiple_of(page);
        // SAFETY: a new mapping chosen by the kernel; nothing else is touched.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
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
