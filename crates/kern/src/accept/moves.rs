//! Whether this kernel wakes who gets a connection that was moved from a closed listener. Where it does not, a connection that was moved
//! to an idle worker would wait until that worker has another one, which is worse than a reset.

use super::set;
use libbpf_rs::libbpf_sys;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::sockopt::ReusePort;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
};
use std::io;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Connections until one of them waits at the listener that is closed: each does so by chance.
const TRIES: usize = 64;
/// How long a wake may take.
const PATIENCE: Duration = Duration::from_millis(200);

fn listener(at: SocketAddrV4) -> io::Result<TcpListener> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    setsockopt(&fd, ReusePort, &true)?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(at))?;
    listen(&fd, Backlog::new(8)?)?;
    Ok(TcpListener::from(fd))
}

/// A program that leaves the choice to the kernel, and has it move connections.
fn program() -> io::Result<OwnedFd> {
    // r0 = SK_PASS; exit
    let code: [u64; 2] = [0x1_0000_00b7, 0x95];
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
        expected_attach_type: libbpf_sys::BPF_SK_REUSEPORT_SELECT_OR_MIGRATE,
        ..Default::default()
    };
    // SAFETY: the names, the code and the options live for the call; the result is checked.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SK_REUSEPORT,
            c"weir_moves".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as libbpf_sys::size_t,
            &raw mut options,
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn look() -> io::Result<bool> {
    let first = listener(SocketAddrV4::new([127, 0, 0, 1].into(), 0))?;
    let std::net::SocketAddr::V4(at) = first.local_addr()? else { return Ok(false) };
    let second = listener(at)?;
    let program = program()?;
    let first = OwnedFd::from(first);
    set(&first, libc::SO_ATTACH_REUSEPORT_EBPF, program.as_raw_fd())?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    // By its edge: it must be told, not only find one.
    epoll.add(&second, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
    let mut clients = Vec::new();
    for _ in 0..TRIES {
        clients.push(TcpStream::connect_timeout(&at.into(), PATIENCE)?);
        if second.accept().is_err() {
            let mut events = [EpollEvent::empty()];
            // What the connections before it have told.
            epoll.wait(&mut events, EpollTimeout::ZERO)?;
            drop(first);
            let told =
                epoll.wait(&mut events, EpollTimeout::try_from(PATIENCE).unwrap_or(EpollTimeout::ZERO))?;
            return Ok(told == 1 && second.accept().is_ok());
        }
    }
    Ok(false)
}

/// Tries it between two listeners on the loopback, within some milliseconds. False too if it cannot be tried.
pub fn moves() -> bool {
    look().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_moves_says_so_root() {
        if !testkit::root_or_skip("a_kernel_that_moves_says_so_root") {
            return;
        }
        let ns = testkit::NetNs::new("moves");
        assert!(!ns.run(moves), "without a loopback it cannot be tried");
        ns.sh("ip", &["link", "set", "lo", "up"]);
        // Whether it wakes is the kernel's own affair; that it was tried is not.
        let found = ns.run(|| look().map_err(|e| e.to_string()));
        println!("this kernel wakes who gets a connection that was moved: {found:?}");
        assert!(found.is_ok(), "{found:?}");
    }
}
