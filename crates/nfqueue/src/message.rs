//! Messages of nfnetlink_queue: what is read, and what is written.

/// `NFQNL_MSG_PACKET` of `NFNL_SUBSYS_QUEUE`.
pub(crate) const PACKET: u16 = 3 << 8;
pub(crate) const VERDICT: u16 = 3 << 8 | 1;
pub(crate) const CONFIG: u16 = 3 << 8 | 2;
pub(crate) const VERDICT_BATCH: u16 = 3 << 8 | 3;
/// `NLM_F_REQUEST`, `NLM_F_ACK`.
pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
/// Message header, and nfgenmsg behind it.
const HEADER: usize = 16;
const HEAD: usize = HEADER + 4;
/// Attributes of a packet.
const PACKET_HDR: u16 = 1;
const PAYLOAD: u16 = 10;
const CAP_LEN: u16 = 13;
/// Attribute of a verdict: what, and the id.
const VERDICT_HDR: u16 = 2;

/// The answer to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `NF_ACCEPT`: it goes on.
    Accept,
    /// `NF_DROP`.
    Drop,
}

/// The kernel's number of a packet in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id([u8; 4]);

/// One message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A packet that waits for its verdict.
    Packet(Packet<'a>),
    /// An answer to a request with this number: 0, or an errno.
    Done {
        /// Number of the request.
        request: u32,
        /// 0, or what went wrong.
        errno: i32,
    },
}

/// A packet that waits for its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// To answer with.
    pub id: Id,
    /// The link's word for what it is, `ETH_P_*`.
    pub ethertype: u16,
    /// Its first bytes, from the network header on.
    pub bytes: &'a [u8],
    /// Length of the whole packet.
    pub length: u32,
}

/// Messages in the bytes of one read. What is cut short gives what there is of it: a packet whose id was read must be
/// answered.
#[derive(Clone, Debug)]
pub struct Messages<'a>(pub(crate) &'a [u8]);

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        loop {
            let length = u32::from_ne_bytes(array(self.0, 0)?) as usize;
            let kind = u16::from_ne_bytes(array(self.0, 4)?);
            if length < HEADER {
                return None;
            }
            let message = self.0.get(..length).unwrap_or(self.0);
            self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
            let read = match kind {
                PACKET => message.get(HEAD..).and_then(packet).map(Message::Packet),
                ERROR => done(message),
                _ => None,
            };
            if read.is_some() {
                return read;
            }
        }
    }
}

fn packet(attributes: &[u8]) -> Option<Packet<'_>> {
    let (mut header, mut bytes, mut whole) = (None, [].as_slice(), None);
    for (kind, value) in Attributes(attributes) {
        match kind {
            PACKET_HDR => header = Some(value),
            PAYLOAD => bytes = value,
            CAP_LEN => whole = array(value, 0).map(u32::from_be_bytes),
            _ => {}
        }
    }
    let header = header?;
    Some(Packet {
        id: Id(array(header, 0)?),
        ethertype: array(header, 4).map_or(0, u16::from_be_bytes),
        bytes,
        length: whole.unwrap_or(bytes.len() as u32),
    })
}

fn done(message: &[u8]) -> Option<Message<'_>> {
    let errno = i32::from_ne_bytes(array(message, HEADER)?);
    // Behind the errno stands the header of the request, whose third field is its number.
    let request = u32::from_ne_bytes(array(message, HEADER + 4 + 8)?);
    Some(Message::Done { request, errno: errno.saturating_neg() })
}

struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(u16::from_ne_bytes(array(self.0, 0)?));
        let kind = u16::from_ne_bytes(array(self.0, 2)?) & 0x3fff;
        let value = self.0.get(4..length.min(self.0.len()))?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// Appends a message for `queue` to `to`.
pub(crate) fn put(
    to: &mut Vec<u8>,
    (kind, flags, number): (u16, u16, u32),
    queue: u16,
    attributes: &[(u16, &[u8])],
) {
    let begin = to.len();
    to.extend([0; 4]);
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend(number.to_ne_bytes());
    // From the kernel's side the sender is 0; any family, version 0, the queue in network order.
    to.extend([0; 4]);
    to.extend([0, 0]);
    to.extend(queue.to_be_bytes());
    for (kind, value) in attributes {
        to.extend((4 + value.len() as u16).to_ne_bytes());
        to.extend(kind.to_ne_bytes());
        to.extend(*value);
        to.resize(to.len().next_multiple_of(4), 0);
    }
    let length = (to.len() - begin) as u32;
    to[begin..begin + 4].copy_from_slice(&length.to_ne_bytes());
}

/// Answers to packets in the order in which they were read, to be sent at once.
///
/// With `batches` the packets of a run with the same verdict share a message (`NFQNL_MSG_VERDICT_BATCH`): the kernel
/// then gives that verdict to every packet up to the run's last that still waits, so every packet is to be answered,
/// and in order.
#[derive(Clone, Debug)]
pub struct Verdicts {
    queue: u16,
    batches: bool,
    bytes: Vec<u8>,
    run: Option<(Verdict, Id, u32)>,
}

impl Verdicts {
    pub(crate) fn new(queue: u16, batches: bool) -> Verdicts {
        Verdicts { queue, batches, bytes: Vec::with_capacity(4096), run: None }
    }

    /// Adds the answer to one packet.
    pub fn push(&mut self, id: Id, verdict: Verdict) {
        match &mut self.run {
            Some((same, last, packets)) if *same == verdict && self.batches => {
                (*last, *packets) = (id, *packets + 1)
            }
            _ => {
                self.end_run();
                self.run = Some((verdict, id, 1));
            }
        }
    }

    fn end_run(&mut self) {
        let Some((verdict, Id(id), packets)) = self.run.take() else { return };
        let mut value = [0; 8];
        value[..4].copy_from_slice(&u32::from(verdict == Verdict::Accept).to_be_bytes());
        value[4..].copy_from_slice(&id);
        let kind = if packets > 1 { VERDICT_BATCH } else { VERDICT };
        put(&mut self.bytes, (kind, REQUEST, 0), self.queue, &[(VERDICT_HDR, &value)]);
    }

    /// What is to be sent, and empties it with [`Verdicts::clear`].
    pub(crate) fn message(&mut self) -> &[u8] {
        self.end_run();
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.run = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet_message(to: &mut Vec<u8>, id: u32, payload: &[u8], whole: Option<u32>) {
        let header = [&id.to_be_bytes()[..], &[0x08, 0, 1]].concat();
        let whole = whole.map(u32::to_be_bytes);
        let mut attributes: Vec<(u16, &[u8])> = vec![(PACKET_HDR, &header[..]), (5, b"dev0".as_slice())];
        if let Some(whole) = &whole {
            attributes.push((CAP_LEN, whole));
        }
        attributes.push((PAYLOAD, payload));
        put(to, (PACKET, 0, 0), 3, &attributes);
    }

    fn ids(bytes: &[u8]) -> Vec<u32> {
        let id = |message| match message {
            Message::Packet(packet) => Some(u32::from_be_bytes(packet.id.0)),
            Message::Done { .. } => None,
        };
        Messages(bytes).filter_map(id).collect()
    }

    #[test]
    fn packets_are_found_among_other_messages() {
        let mut read = Vec::new();
        packet_message(&mut read, 7, b"payload", None);
        put(&mut read, (CONFIG, 0, 0), 3, &[]);
        packet_message(&mut read, 8, b"pay", Some(1500));
        assert_eq!(ids(&read), [7, 8]);
        let lengths = Messages(&read).filter_map(|m| match m {
            Message::Packet(p) => Some((p.ethertype, p.bytes.to_vec(), p.length)),
            Message::Done { .. } => None,
        });
        let expected = [(0x0800, b"payload".to_vec(), 7), (0x0800, b"pay".to_vec(), 1500)];
        assert_eq!(lengths.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_packet_that_is_cut_still_has_its_id() {
        let mut read = Vec::new();
        packet_message(&mut read, 7, &[5; 300], None);
        for cut in 0..read.len() {
            let ids = ids(&read[..cut]);
            // Header, the attribute's own, and the four bytes of the id.
            assert_eq!(ids, if cut >= HEAD + 8 { vec![7] } else { vec![] }, "{cut}");
        }
    }

    #[test]
    fn errors_tell_which_request_they_are_about() {
        let mut request = Vec::new();
        put(&mut request, (CONFIG, REQUEST | ACK, 5), 3, &[]);
        let mut read = vec![0; 4];
        read.extend(ERROR.to_ne_bytes());
        read.extend([0; 10]);
        read.extend((-libc::EBUSY).to_ne_bytes());
        read.extend(&request[..HEADER]);
        let length = read.len() as u32;
        read[..4].copy_from_slice(&length.to_ne_bytes());
        let found: Vec<_> = Messages(&read).collect();
        assert_eq!(found, [Message::Done { request: 5, errno: libc::EBUSY }]);
    }

    /// What the kernel does with verdicts: those of a batch go to all that wait up to its id.
    fn kernel(mut waiting: Vec<u32>, mut bytes: &[u8]) -> Vec<(u32, Verdict)> {
        let mut answered = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_ne_bytes(array(bytes, 0).unwrap()) as usize;
            let kind = u16::from_ne_bytes(array(bytes, 4).unwrap());
            let verdict = match u32::from_be_bytes(array(bytes, HEAD + 4).unwrap()) {
                1 => Verdict::Accept,
                _ => Verdict::Drop,
            };
            let id = u32::from_be_bytes(array(bytes, HEAD + 8).unwrap());
            let taken = |w: &u32| if kind == VERDICT_BATCH { *w <= id } else { *w == id };
            answered.extend(waiting.iter().filter(|w| taken(w)).map(|w| (*w, verdict)));
            waiting.retain(|w| !taken(w));
            bytes = &bytes[length..];
        }
        assert!(waiting.is_empty(), "{waiting:?} wait for ever");
        answered
    }

    proptest! {
        #[test]
        fn each_packet_gets_its_own_verdict(accepts in prop::collection::vec(any::<bool>(), 0..70), batches in any::<bool>()) {
            let mut verdicts = Verdicts::new(3, batches);
            let meant: Vec<(u32, Verdict)> = (1..).zip(&accepts).map(|(id, accept)| {
                (id, if *accept { Verdict::Accept } else { Verdict::Drop })
            }).collect();
            for _ in 0..2 {
                meant.iter().for_each(|(id, verdict)| verdicts.push(Id(id.to_be_bytes()), *verdict));
                let waiting = meant.iter().map(|(id, _)| *id).collect();
                prop_assert_eq!(&kernel(waiting, verdicts.message()), &meant);
                verdicts.clear();
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in any::<Vec<u8>>()) {
            prop_assert!(Messages(&bytes).count() <= bytes.len() / HEADER + 1);
        }
    }
}
