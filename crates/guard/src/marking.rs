//! Handles learn their ids (drivers.md section 4). One datagram of a flow that the firewall has let through is steered to
//! the handle. Where that tells nothing, because what arrives is TCP, forwarded, or for connected sockets, an io_uring polls by
//! the id that the kernel lists (6.13). Older kernels have XDP rewrite one frame into a datagram for the handle, which a
//! firewall may drop.
//!
//! A handle that got a datagram and no id, or that of a queue which another handle serves, is of no use any more: it is
//! replaced.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kern::guard::{Handle, Reach, Steering, Views};
use policy::marking::{self, MARKS_MAX, NAP, PATIENCE, SPARE, Told, Way};
use policy::{MILLISECOND, Nanos, lease};

use crate::clock;
use crate::source::Source;

/// Why a handle is not marked.
#[derive(Debug, thiserror::Error)]
pub enum Unmarked {
    /// Nothing came that could tell.
    #[error("no packet told its NAPI id within {} ms", PATIENCE / MILLISECOND)]
    Silence,
    /// What came went past every NAPI, or through others.
    #[error("{0} packets told no NAPI id, or another one")]
    Strangers(u32),
    /// Frames cannot be rewritten.
    #[error("its XDP program: {0}")]
    Rx(std::io::Error),
    /// The kernel gives no socket.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The search for a socket in place of an io_uring.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// When it began.
    pub since: Nanos,
    /// Datagrams and frames that it took, and that told nothing.
    pub lost: u32,
    /// Until when the last datagram was asked for, and how many packets of the source had come before.
    steered: Option<(Nanos, u64)>,
    /// How many frames had been rewritten when one more was asked for.
    asked_at: Option<u64>,
}

impl Search {
    /// From `now` on.
    pub fn begin(now: Nanos) -> Self {
        Self { since: now, lost: 0, steered: None, asked_at: None }
    }
}

/// The handle of a source while nobody polls through it, and how it is marked.
pub struct Marking {
    source: Arc<Source>,
    steering: Option<Arc<Steering>>,
    handle: Handle,
    marked: bool,
}

impl Marking {
    /// A new handle for the source.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn new(source: Arc<Source>, steering: Option<Arc<Steering>>) -> std::io::Result<Self> {
        let handle = fresh(&source, steering.is_some())?;
        Ok(Self { source, steering, handle, marked: false })
    }

    /// True once the handle knows its id.
    pub fn is_marked(&self) -> bool {
        self.marked
    }

    /// The handle; of use for turns once it is marked.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Gives the handle to whoever makes the turns; a new one, of no use before it comes back, takes its place.
    ///
    /// # Errors
    /// If the kernel refuses preferred busy polling, or another socket.
    pub fn lend(&mut self) -> std::io::Result<Handle> {
        self.handle.arm(1)?;
        let other = fresh(&self.source, self.steering.is_some())?;
        Ok(std::mem::replace(&mut self.handle, other))
    }

    /// While an io_uring is lent: asks for a datagram or a frame that marks the socket which took its place, and gives that once one
    /// did.
    pub fn improve(&mut self, views: &Views, search: &mut Search) -> Option<Handle> {
        let marked = views.rx_stats[self.source.slot].marked.load(Relaxed);
        let dropped = search.asked_at.is_some_and(|at| at != marked);
        match self.has_learnt().ok()? {
            Told::Id(_) => {
                self.end(views);
                self.handle.seal().ok()?;
                return self.lend().ok();
            }
            Told::Never => {
                search.lost += 1;
                self.replace().ok()?;
            }
            // A frame was rewritten, and a firewall has dropped it.
            Told::Nothing if dropped => search.lost += 1,
            Told::Nothing => {}
        }
        let (now, packets) = (clock::now(), views.source_stats[self.source.slot].packets.load(Relaxed));
        let in_vain = |(until, before): (Nanos, u64)| {
            now < until && marking::improves_by_frames(packets.wrapping_sub(before))
        };
        let frames = !self.steer(0) || search.steered.is_some_and(in_vain);
        search.steered = Some((now + lease::LEASE, packets));
        if frames && self.source.rx_attached() && search.asked_at != Some(marked) {
            search.asked_at = Some(marked);
            rewrite(&self.source, views, &self.handle, SPARE);
        }
        None
    }

    /// The handle is back.
    pub fn give_back(&mut self, handle: Handle) {
        self.handle = handle;
    }

    /// Asks for one frame to be rewritten in peace; the first ones that somebody would miss are let go. Returns at once.
    pub fn ask(&self, views: &Views) {
        // A frame that was rewritten finds the handle only if it is steered there.
        self.steer(u32::MAX);
        rewrite(&self.source, views, &self.handle, SPARE);
    }

    /// Takes note of what a packet has told by now; true if that is the id. A handle that can never learn it is replaced, and
    /// asked for anew.
    pub fn look(&mut self, views: &Views) -> bool {
        match self.told(views) {
            Ok(Told::Id(_)) => true,
            Ok(Told::Nothing) => false,
            Ok(Told::Never) | Err(_) => {
                if self.replace().is_ok() {
                    self.ask(views);
                }
                false
            }
        }
    }

    /// Waits until a packet has told the handle its id, or takes an io_uring where one `may` poll the source.
    ///
    /// # Errors
    /// If none did in time.
    pub fn wait(&mut self, views: &Views, may: bool) -> Result<(), Unmarked> {
        if self.marked {
            return Ok(());
        }
        let (start, mut strangers, mut asked, mut seen, mut io_uring) = (clock::now(), 0, 0, None, may);
        let stat = &views.rx_stats[self.source.slot];
        // What was asked for in peace: a frame beside a datagram would be taken in vain.
        views.source_ctls[self.source.slot].marks.store(0, Relaxed);
        let steers = self.steer(0);
        let result = loop {
            let (waited, id) = (clock::now().saturating_sub(start), self.source.now.napi_id.load(Relaxed));
            let way = marking::way(waited, strangers, steers, id != 0 && io_uring);
            match way {
                Way::IoUring => match Handle::by_id(id) {
                    Ok(handle) => self.handle = handle,
                    Err(_) => {
                        io_uring = false;
                        continue;
                    }
                },
                Way::GiveUp => {
                    break Err(match strangers {
                        0 => Unmarked::Silence,
                        n => Unmarked::Strangers(n),
                    });
                }
                Way::Steer | Way::Rewrite => {}
            }
            match self.told(views)? {
                Told::Id(_) => break Ok(()),
                Told::Nothing => {}
                Told::Never => {
                    strangers += 1;
                    self.replace()?;
                    // When frames are rewritten others are let go, so that none of them takes their place.
                    self.steer(if way == Way::Rewrite { u32::MAX } else { 0 });
                    seen = None;
                    continue;
                }
            }
            if way == Way::Rewrite {
                if let Err(e) = self.source.hold_rx() {
                    break Err(Unmarked::Rx(e));
                }
                let now = stat.marked.load(Relaxed);
                if asked < MARKS_MAX && seen != Some(now) {
                    asked += 1;
                    seen = Some(now);
                    rewrite(&self.source, views, &self.handle, 0);
                }
            }
            std::thread::sleep(Duration::from_nanos(NAP));
        };
        self.end(views);
        result
    }

    /// Nothing more is taken for the handle.
    pub fn end(&self, views: &Views) {
        views.source_ctls[self.source.slot].marks.store(0, Relaxed);
        if let Some(steering) = &self.steering {
            steering.end(self.source.first, &self.source.seen_as);
        }
    }

    /// What the handle has learnt; one that knows its id takes nothing more from then on.
    fn told(&mut self, views: &Views) -> std::io::Result<Told> {
        let expected = self.source.now.napi_id.load(Relaxed);
        if self.marked {
            return Ok(Told::Id(expected));
        }
        let told = self.has_learnt()?;
        let Told::Id(id) = told else { return Ok(told) };
        self.end(views);
        self.handle.seal()?;
        if expected == 0 {
            // The control loop prepares the source before it can be taken over.
            views.source_stats[self.source.slot].napi_id.store(id, Relaxed);
        }
        self.marked = true;
        self.source.now.marked.store(true, Relaxed);
        Ok(told)
    }

    fn has_learnt(&self) -> std::io::Result<Told> {
        let known = self.handle.napi_id()?;
        let got = known.is_none() && self.handle.got_something();
        Ok(marking::told(known, got, self.source.now.napi_id.load(Relaxed)))
    }

    fn replace(&mut self) -> std::io::Result<()> {
        self.handle = fresh(&self.source, self.steering.is_some())?;
        Ok(())
    }

    /// Asks for a datagram; false if none can be steered here.
    fn steer(&self, spare: u32) -> bool {
        let Some(steering) = &self.steering else { return false };
        let lease = clock::now() + lease::LEASE;
        steering.ask(self.source.first, &self.source.seen_as, &self.handle, spare, lease).is_ok()
    }
}

fn fresh(source: &Source, steered: bool) -> std::io::Result<Handle> {
    Handle::new(&source.seen_as, if steered { Reach::Steered } else { Reach::Rewritten })
}

/// Asks for one frame to be rewritten; the first `spare` frames that somebody would miss are let go. Returns at once.
fn rewrite(source: &Source, views: &Views, handle: &Handle, spare: u32) {
    let (ctl, stat) = (&views.source_ctls[source.slot], &views.rx_stats[source.slot]);
    ctl.mark_port.store(handle.port(), Relaxed);
    ctl.spare.store(stat.spared.load(Relaxed).wrapping_add(spare), Relaxed);
    ctl.lease.store(clock::now() + lease::LEASE, Relaxed);
    ctl.marks.store((stat.marked.load(Relaxed) as u32).wrapping_add(1), Relaxed);
}
