//! XDP programs of another owner, and a program that reads with an AF_XDP socket. Plain system calls: what is tested
//! must not stand on weir's own loader.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::world::World;

/// Frames of the shared memory, and entries of each ring: a power of two.
const FRAMES: u32 = 256;
/// Bytes of one frame.
const FRAME: u32 = 2048;

/// One call of bpf(2) with its attributes as words; what it answers.
fn bpf(command: u32, attributes: &mut [u32]) -> i64 {
    let size = size_of_val(attributes);
    // SAFETY: the kernel reads `size` bytes of `attributes`, and what the pointers in it lead to.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size) };
    assert!(rc >= 0, "bpf command {command}: {}", io::Error::last_os_error());
    rc
}

fn own(fd: i64) -> OwnedFd {
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel has just made it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn halves<T>(at: *const T) -> [u32; 2] {
    let at = at as u64;
    [at as u32, (at >> 32) as u32]
}

/// Loads `code` as an XDP program and attaches it to an interface of the caller's namespace, by a link that ends when
/// it is dropped.
fn attach(ifindex: u32, code: &[u64]) -> OwnedFd {
    let (code_at, licence_at) = (halves(code.as_ptr()), halves(c"GPL".as_ptr()));
    // BPF_PROG_LOAD: type XDP (6), instructions, licence.
    let mut words =
        [6, code.len() as u32, code_at[0], code_at[1], licence_at[0], licence_at[1], 0, 0, 0, 0, 0, 0];
    let program = own(bpf(5, &mut words));
    // BPF_LINK_CREATE: program, interface, BPF_XDP (37), flags.
    own(bpf(28, &mut [program.as_raw_fd() as u32, ifindex, 37, 0]))
}

/// `return XDP_PASS` on `name` of the host.
pub fn xdp_pass(world: &World, name: &'static str) -> OwnedFd {
    // mov64 r0, XDP_PASS; exit
    world.inside(move || attach(kern::netns::index_of(name).unwrap(), &[0x0000_0002_0000_00b7, 0x95]))
}

/// `return XDP_DROP` on `name` of the caller's namespace.
pub fn xdp_drop(name: &str) -> OwnedFd {
    // mov64 r0, XDP_DROP; exit
    attach(kern::netns::index_of(name).unwrap(), &[0x0000_0001_0000_00b7, 0x95])
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    u64::from(code)
        | u64::from(to | from << 4) << 8
        | u64::from(offset as u16) << 16
        | u64::from(value as u32) << 32
}

/// Frames with UDP over IPv4 to `port` go to the socket of their queue in `map`, all others pass.
fn redirect(map: &OwnedFd, port: u16) -> [u64; 17] {
    const LOAD_WORD: u8 = 0x61;
    [
        instruction(LOAD_WORD, 2, 1, 0, 0), // data
        instruction(LOAD_WORD, 3, 1, 4, 0), // its end
        instruction(0xbf, 4, 2, 0, 0),
        instruction(0x07, 4, 0, 0, 42),
        instruction(0x2d, 4, 3, 10, 0), // too short
        instruction(0x71, 5, 2, 23, 0), // protocol
        instruction(0x55, 5, 0, 8, libc::IPPROTO_UDP),
        instruction(0x69, 5, 2, 36, 0), // port
        instruction(0x55, 5, 0, 6, i32::from(port.to_be())),
        instruction(LOAD_WORD, 2, 1, 16, 0), // queue
        instruction(0x18, 1, 1, 0, map.as_raw_fd()),
        0,
        instruction(0xb7, 3, 0, 0, 2),  // else XDP_PASS
        instruction(0x85, 0, 0, 0, 51), // bpf_redirect_map
        instruction(0x95, 0, 0, 0, 0),
        instruction(0xb7, 0, 0, 0, 2),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// Memory that is shared with the kernel.
struct Shared {
    at: NonNull<libc::c_void>,
    length: usize,
}

// SAFETY: the memory belongs to the process; one thread uses it at a time, since every use needs `&mut AfXdp`.
unsafe impl Send for Shared {}

impl Shared {
    fn ring(socket: &OwnedFd, length: usize, page: i64) -> Shared {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        let size = NonZeroUsize::new(length).unwrap();
        // SAFETY: a new mapping, of the length that the kernel was asked for.
        let at = unsafe { mmap(None, size, protection, flags, socket, page) }.unwrap();
        Shared { at, length }
    }

    /// The word at `offset` bytes, which the kernel writes or reads at the same time.
    fn word(&self, offset: u64) -> &AtomicU32 {
        assert!(offset as usize + 4 <= self.length);
        // SAFETY: within the mapping, aligned as the kernel laid it out, alive as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at.byte_add(offset as usize).cast().as_ptr()) }
    }

    fn read<T: Copy>(&self, offset: usize) -> T {
        assert!(offset + size_of::<T>() <= self.length);
        // SAFETY: within the mapping, and the producer index says that the kernel has written it.
        unsafe { self.at.byte_add(offset).cast::<T>().read_unaligned() }
    }

    fn write<T: Copy>(&mut self, offset: usize, value: T) {
        assert!(offset + size_of::<T>() <= self.length);
        // SAFETY: within the mapping, and the kernel reads it only once the producer index says so.
        unsafe { self.at.byte_add(offset).cast::<T>().write_unaligned(value) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: a mapping of this value alone.
        let _ = unsafe { munmap(self.at, self.length) };
    }
}

/// A user of AF_XDP in copy mode on queue 0 of an interface: its own program leads the datagrams for one port past
/// the kernel's stack. Everything is gone when it is dropped.
pub struct AfXdp {
    _link: OwnedFd,
    socket: OwnedFd,
    memory: Shared,
    received: Shared,
    fill: Shared,
    offsets: libc::xdp_mmap_offsets,
}

impl AfXdp {
    /// Binds a socket to `name` of the host for datagrams to `port`.
    pub fn open(world: &World, name: &'static str, port: u16) -> AfXdp {
        world.inside(move || AfXdp::open_here(kern::netns::index_of(name).unwrap(), port))
    }

    fn open_here(ifindex: u32, port: u16) -> AfXdp {
        // SAFETY: plain system call.
        let socket =
            own(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }.into());
        let length = FRAMES as usize * FRAME as usize;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let size = NonZeroUsize::new(length).unwrap();
        // SAFETY: a new mapping.
        let at = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) }.unwrap();
        let memory = Shared { at, length };
        let region = libc::xdp_umem_reg_v1 {
            addr: at.as_ptr() as u64,
            len: length as u64,
            chunk_size: FRAME,
            headroom: 0,
        };
        set(&socket, libc::XDP_UMEM_REG, &region);
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            set(&socket, ring, &FRAMES);
        }
        let offsets = offsets(&socket);
        let entries = FRAMES as usize;
        let received = offsets.rx.desc as usize + entries * size_of::<libc::xdp_desc>();
        let received = Shared::ring(&socket, received, libc::XDP_PGOFF_RX_RING);
        let fill = offsets.fr.desc as usize + entries * size_of::<u64>();
        let fill = Shared::ring(&socket, fill, libc::XDP_UMEM_PGOFF_FILL_RING as i64);
        // XSKMAP (17) with one socket.
        let map = own(bpf(0, &mut [17, 4, 4, 1]));
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address and its length describe one value, which lives through the call.
        let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(rc, 0, "bind AF_XDP: {}", io::Error::last_os_error());
        let (key, value) = (0u32, socket.as_raw_fd());
        let (key, value) = (halves(&raw const key), halves(&raw const value));
        // BPF_MAP_UPDATE_ELEM
        bpf(2, &mut [map.as_raw_fd() as u32, 0, key[0], key[1], value[0], value[1], 0, 0]);
        let link = attach(ifindex, &redirect(&map, port));
        let mut user = AfXdp { _link: link, socket, memory, received, fill, offsets };
        (0..FRAMES).for_each(|n| user.give_back(u64::from(n * FRAME)));
        user
    }

    /// Has the kernel use the frame at `address` again; there are no more frames than places in the ring.
    fn give_back(&mut self, address: u64) {
        let ring = self.offsets.fr;
        let next = self.fill.word(ring.producer).load(Ordering::Relaxed);
        self.fill.write(ring.desc as usize + (next % FRAMES) as usize * size_of::<u64>(), address);
        self.fill.word(ring.producer).store(next.wrapping_add(1), Ordering::Release);
    }

    /// Waits for frames, 20 ms at most, and shows each of them to `each`.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        // An interrupted wait is as good as one that timed out.
        let _ = poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], PollTimeout::from(20u8));
        let ring = self.offsets.rx;
        let end = self.received.word(ring.producer).load(Ordering::Acquire);
        let mut next = self.received.word(ring.consumer).load(Ordering::Relaxed);
        let mut frame = [0u8; FRAME as usize];
        while next != end {
            let at = ring.desc as usize + (next % FRAMES) as usize * size_of::<libc::xdp_desc>();
            let found: libc::xdp_desc = self.received.read(at);
            for (n, byte) in frame.iter_mut().enumerate().take(found.len as usize) {
                *byte = self.memory.read(found.addr as usize + n);
            }
            each(&frame[..found.len as usize]);
            next = next.wrapping_add(1);
            self.received.word(ring.consumer).store(next, Ordering::Release);
            self.give_back(found.addr - found.addr % u64::from(FRAME));
        }
    }
}

fn set<T>(socket: &OwnedFd, option: i32, value: &T) {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`.
    let rc = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, std::ptr::from_ref(value).cast(), length)
    };
    assert_eq!(rc, 0, "AF_XDP option {option}: {}", io::Error::last_os_error());
}

fn offsets(socket: &OwnedFd) -> libc::xdp_mmap_offsets {
    // SAFETY: all-zero is a valid value.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&offsets) as libc::socklen_t;
    // SAFETY: the pointer and the length describe `offsets`.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut length,
        )
    };
    assert_eq!(rc, 0, "XDP_MMAP_OFFSETS: {}", io::Error::last_os_error());
    offsets
}
