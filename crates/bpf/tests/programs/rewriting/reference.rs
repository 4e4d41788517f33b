// SPDX-License-Identifier: Apache-2.0
//! What a node of the packet path makes of segments, from RFC 9293, 7323 and 2018 and
//! docs/design/0022, without a thought about speed. Lengths and checksums are the business of
//! [`Segment::read`].

use super::options::{Offer, Opt, read};
use crate::segment::{ACK, FIN, RST, SYN, Segment};

/// Segments that a flow holds until its server answers, the longest that is held whole, and the pieces
/// of longer ones.
const HELD_MAX: usize = 16;
const WHOLE_MAX: usize = 1536;
const PIECE: usize = 1448;
/// What an absent option means (RFC 9293 section 3.7.1), and the least that is learned.
const MSS_DEFAULT: u16 = 536;
/// The largest shift that a client is promised.
const SHIFT_MAX: u8 = 7;
/// What a server takes at the least, and no ICMP error makes segments smaller.
const MSS_LEAST: [u16; 2] = [536, 1220];
/// ECE and CWR (RFC 3168 section 6.1.1), and an urgent pointer's flag.
const ECN: u8 = 0xc0;
pub(super) const URG: u8 = 0x20;

/// One hop further.
pub(super) fn forwarded(segment: &Segment) -> Segment {
    Segment {
        hops: segment.hops - 1,
        ..segment.clone()
    }
}

/// What the SYN-ACKs of a destination have shown. Of an option: whether it was granted, if it was
/// offered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    mss: u16,
    window: u16,
    shift: Option<Option<u8>>,
    sack: Option<bool>,
    times: Option<bool>,
}

/// What the node promises to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    pub(super) mss: u16,
    window: u16,
    pub(super) shift: Option<u8>,
    pub(super) sack: bool,
    pub(super) times: bool,
}

impl Known {
    /// Learns from the answer to a SYN that offered these; `is_promised`: its client has the node's answer.
    pub(super) fn learn(&mut self, offered: [bool; 3], answer: &Segment, is_promised: bool) {
        let grant = Offer::of(answer).expect("servers send nothing else");
        let mss = grant.mss.unwrap_or(MSS_DEFAULT);
        // Of what clients were granted, the most, but no more than a promise that was broken.
        let counts = if is_promised {
            (MSS_DEFAULT..self.mss).contains(&mss)
        } else {
            mss > self.mss
        };
        if self.mss == 0 || counts {
            self.mss = mss;
        }
        self.window = answer.window;
        let [shift, sack, times] = offered;
        if shift {
            // Of what servers needed, the most.
            let former = self.shift.flatten().unwrap_or(0);
            self.shift = Some(grant.shift.map(|shift| shift.max(former)));
        }
        if sack {
            self.sack = Some(grant.sack);
        }
        if times {
            self.times = Some(grant.times.is_some());
        }
    }

    /// Whether a node learns from such an answer.
    pub(super) fn is_usual(answer: &Segment) -> bool {
        let mss = Offer::of(answer).and_then(|grant| grant.mss);
        answer.window > 0 && mss.unwrap_or(MSS_DEFAULT) >= MSS_DEFAULT
    }

    /// Whether it is known what is granted of an offer.
    pub(super) fn covers(&self, offer: &Offer) -> bool {
        self.mss != 0
            && (offer.shift.is_none() || self.shift.is_some())
            && (!offer.sack || self.sack.is_some())
            && (offer.times.is_none() || self.times.is_some())
    }

    /// `fits`: the longest segment on the client's link.
    pub(super) fn promise(&self, offer: &Offer, fits: u16) -> Promise {
        let mss = self.mss.min(fits);
        let size = usize::from(mss);
        let pieces = if size > WHOLE_MAX {
            size.div_ceil(PIECE)
        } else {
            1
        };
        let most = HELD_MAX / pieces * size;
        Promise {
            mss,
            window: u16::try_from(most.min(self.window.into())).unwrap(),
            shift: self
                .shift
                .flatten()
                .filter(|_| offer.shift.is_some())
                .map(|shift| shift.min(SHIFT_MAX)),
            sack: offer.sack && self.sack == Some(true),
            times: offer.times.is_some() && self.times == Some(true),
        }
    }
}

impl Promise {
    pub(super) fn offered(&self) -> [bool; 3] {
        [self.shift.is_some(), self.sack, self.times]
    }
}

/// A flow that the node has answered.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) syn: Segment,
    pub(super) offer: Offer,
    pub(super) promise: Promise,
    /// Those of the node's SYN-ACK.
    pub(super) isn: u32,
    pub(super) time: u32,
    held: Vec<Segment>,
    held_next: u32,
    /// The client's last window, and its newest timestamp.
    window: u16,
    newest: u32,
    /// The server's SYN-ACK, and what it grants.
    answer: Option<(Segment, Offer)>,
}

impl Flow {
    /// Of a SYN and the answer of the node to it.
    pub(super) fn new(syn: &Segment, offer: Offer, promise: Promise, answer: &Segment) -> Self {
        let times = Offer::of(answer).and_then(|grant| grant.times);
        Self {
            syn: syn.clone(),
            offer,
            promise,
            isn: answer.sequence,
            time: times.map_or(0, |times| times.0),
            held: Vec::new(),
            held_next: syn.sequence.wrapping_add(1),
            window: syn.window,
            newest: offer.times.map_or(0, |times| times.0),
            answer: None,
        }
    }

    /// The SYN for the server: without what the client was not promised, nor ECN.
    pub(super) fn to_server(&self, syn: &Segment) -> Segment {
        let Promise {
            shift, sack, times, ..
        } = self.promise;
        let is_promised = |option: &Opt| match option {
            Opt::Shift(_) => shift.is_some(),
            Opt::SackPermitted => sack,
            Opt::Times(..) => times,
            _ => true,
        };
        let options = read(&syn.options).unwrap().into_iter().filter(is_promised);
        Segment {
            flags: syn.flags & !ECN,
            options: options.flat_map(|option| option.bytes()).collect(),
            ..forwarded(syn)
        }
    }

    /// The node's SYN-ACK for a SYN, with its options in the node's order.
    pub(super) fn to_client(&self, syn: &Segment) -> Segment {
        let promise = self.promise;
        let offer = Offer::of(syn).expect("the node read it");
        let times = offer.times.filter(|_| promise.times);
        let options = [
            offer.mss.map(|_| Opt::Mss(promise.mss)),
            (offer.sack && promise.sack).then_some(Opt::SackPermitted),
            times.map(|(value, _)| Opt::Times(self.time, value)),
            offer.shift.and(promise.shift).map(Opt::Shift),
        ];
        let options = options.into_iter().flatten();
        Segment {
            from: syn.to,
            to: syn.from,
            flags: SYN | ACK,
            sequence: self.isn,
            acknowledgment: syn.sequence.wrapping_add(1),
            window: promise.window,
            hops: 64,
            options: options.flat_map(|option| option.bytes()).collect(),
            data: Vec::new(),
        }
    }

    /// The reset of an older connection of which the server has sent a segment.
    pub(super) fn reset_of(&self, older: &Segment) -> Segment {
        forwarded(&Segment {
            sequence: older.acknowledgment,
            window: 0,
            hops: self.syn.hops,
            options: Vec::new(),
            ..Segment::new(self.syn.from, self.syn.to, RST)
        })
    }

    /// The SYN once more, with the client's last window and timestamp, and options in the node's order.
    pub(super) fn syn_again(&self) -> Segment {
        let Promise {
            shift, sack, times, ..
        } = self.promise;
        let options = [
            self.offer.mss.map(Opt::Mss),
            sack.then_some(Opt::SackPermitted),
            times.then_some(Opt::Times(self.newest, 0)),
            shift.and(self.offer.shift).map(Opt::Shift),
        ];
        let options = options.into_iter().flatten();
        let scale = shift.and(self.offer.shift).unwrap_or(0);
        Segment {
            flags: SYN,
            window: rescaled(self.window, scale, 0),
            options: options.flat_map(|option| option.bytes()).collect(),
            ..forwarded(&self.syn)
        }
    }

    /// A segment of the client before the server's answer, in pieces of so many bytes.
    pub(super) fn hold(&mut self, segment: &Segment, piece: usize) {
        if segment.flags & URG != 0 {
            return;
        }
        if segment.data.is_empty() && segment.flags & FIN == 0 {
            self.window = segment.window;
            return;
        }
        if segment.sequence != self.held_next || self.held.len() == HELD_MAX {
            return;
        }
        self.window = segment.window;
        self.note_time(Offer::of(&without_blocks(segment)).and_then(|offer| offer.times));
        let piece = if piece > WHOLE_MAX {
            PIECE
        } else {
            piece.max(1)
        };
        let mut pieces: Vec<&[u8]> = segment.data.chunks(piece).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        let count = pieces.len();
        for (number, data) in pieces.into_iter().enumerate() {
            if self.held.len() == HELD_MAX {
                return;
            }
            let is_last = number + 1 == count;
            let flags = segment.flags & if is_last { 0xff } else { !FIN };
            self.held.push(Segment {
                sequence: self.held_next,
                flags,
                data: data.to_vec(),
                ..segment.clone()
            });
            let octets = u32::try_from(data.len()).unwrap() + u32::from(flags & FIN);
            self.held_next = self.held_next.wrapping_add(octets);
        }
    }

    pub(super) fn note_time(&mut self, times: Option<(u32, u32)>) {
        if let Some((value, _)) = times
            && value.wrapping_sub(self.newest).cast_signed() > 0
        {
            self.newest = value;
        }
    }

    /// The server answers.
    pub(super) fn accept(&mut self, answer: &Segment) {
        let grant = Offer::of(answer).expect("servers send nothing else");
        self.answer = Some((answer.clone(), grant));
    }

    /// What the node sends to the server for the client then: all that it held, or a bare
    /// acknowledgement.
    pub(super) fn released(&self) -> Vec<Segment> {
        let bare = Segment {
            flags: ACK,
            sequence: self.held_next,
            ..self.syn.clone()
        };
        let held = if self.held.is_empty() {
            std::slice::from_ref(&bare)
        } else {
            &self.held
        };
        let options = match self.promise.times {
            true => Opt::Times(self.newest, self.time).bytes(),
            false => Vec::new(),
        };
        let released = held.iter().filter_map(|held| {
            let segment = Segment {
                flags: held.flags | ACK,
                acknowledgment: self.isn.wrapping_add(1),
                window: self.window,
                hops: self.syn.hops,
                options: [vec![1; options.len() % 4], options.clone()].concat(),
                ..held.clone()
            };
            self.up(&segment)
        });
        released.collect()
    }

    /// The server's answer, and what the client gets if it is sent again: a question whether it is there,
    /// which the client answers with numbers and time of its own (RFC 9293 section 3.8.4).
    pub(super) fn question(&self) -> (Segment, Segment) {
        let (answer, grant) = self.answer.as_ref().expect("the server has answered");
        let times = self.time_delta().zip(grant.times);
        let times = times.map(|(delta, (value, echo))| Opt::Times(value.wrapping_sub(delta), echo));
        let question = Segment {
            flags: ACK,
            sequence: self.isn,
            window: rescaled(answer.window, 0, self.promise.shift.unwrap_or(0)),
            options: times.map_or(vec![], |times| times.bytes()),
            ..forwarded(answer)
        };
        (answer.clone(), question)
    }

    /// The numbers of held segments that are longer than the server takes.
    pub(super) fn too_long(&self) -> Vec<u32> {
        let times = if self.promise.times { 12 } else { 0 };
        let too_long = self.held.iter().filter(|held| {
            let released = Segment {
                options: vec![1; times],
                ..(*held).clone()
            };
            self.is_too_long(&released)
        });
        too_long.map(|held| held.sequence).collect()
    }

    /// The number of the server that stands for one of the node, less the latter.
    fn delta(&self) -> u32 {
        let (answer, _) = self.answer.as_ref().expect("the server has answered");
        answer.sequence.wrapping_sub(self.isn)
    }

    /// What must be added to the node's timestamps to have the server's; `None` if the server has
    /// none, and ignores the client's.
    fn time_delta(&self) -> Option<u32> {
        let (_, grant) = self.answer.as_ref()?;
        let (value, _) = grant.times?;
        self.promise.times.then(|| value.wrapping_sub(self.time))
    }

    /// Whether both ends have timestamps.
    pub(super) fn is_stamped(&self) -> bool {
        self.time_delta().is_some()
    }

    /// The client's number behind what is held.
    pub(super) fn next_held(&self) -> u32 {
        self.held_next
    }

    /// Whether the server shifts windows, its own and the client's.
    fn server_shift(&self) -> Option<u8> {
        let grant = self.answer.as_ref().and_then(|(_, grant)| grant.shift);
        self.promise.shift.and(grant)
    }

    /// Whether a segment of the client is longer than its server takes.
    pub(super) fn is_too_long(&self, segment: &Segment) -> bool {
        let Some((answer, grant)) = &self.answer else {
            return false;
        };
        let granted = grant.mss.unwrap_or(MSS_DEFAULT);
        let least = granted.max(MSS_LEAST[usize::from(answer.from.is_ipv6())]);
        let octets = segment.data.len() + segment.options.len();
        granted < self.promise.mss && octets > usize::from(least)
    }

    /// A segment of the client at the server, unless it is too long.
    pub(super) fn up(&self, segment: &Segment) -> Option<Segment> {
        (!self.is_too_long(segment)).then(|| self.translated_up(segment))
    }

    fn translated_up(&self, segment: &Segment) -> Segment {
        // The client scales what it was promised to scale.
        let client = self.promise.shift.and(self.offer.shift).unwrap_or(0);
        let server = self.server_shift().and(self.offer.shift).unwrap_or(0);
        let options = read(&segment.options)
            .unwrap()
            .into_iter()
            .map(|option| match option {
                Opt::Blocks(edges) => Opt::Blocks(
                    edges
                        .iter()
                        .map(|edge| edge.wrapping_add(self.delta()))
                        .collect(),
                ),
                Opt::Times(value, echo) if echo != 0 => {
                    Opt::Times(value, echo.wrapping_add(self.time_delta().unwrap_or(0)))
                }
                other => other,
            });
        Segment {
            acknowledgment: segment.acknowledgment.wrapping_add(self.delta()),
            window: rescaled(segment.window, client, server),
            options: options.flat_map(|option| option.bytes()).collect(),
            ..forwarded(segment)
        }
    }

    /// Whether the node adds timestamps to the segments of its server: that has none, and they were
    /// promised.
    pub(super) fn adds_times(&self) -> bool {
        self.promise.times && !self.is_stamped()
    }

    /// Whether the client may have sent this timestamp: its SYN's, or one of a segment, which are at most five
    /// seconds ahead of it.
    pub(super) fn has_sent_time(&self, time: u32) -> bool {
        let (first, _) = self.offer.times.expect("it offered timestamps");
        time.wrapping_sub(first) < 6000
    }

    /// Whether a segment with what the node has added is no longer than the client allows. The least piece has
    /// 16 bytes.
    pub(super) fn has_room_for(&self, segment: &Segment) -> bool {
        let most = self.offer.mss.expect("it was offered").min(1460);
        let octets = segment.data.len() + segment.options.len();
        segment.data.len() <= 16 || octets <= usize::from(most)
    }

    /// A segment of the server at the client, without timestamps that the node adds.
    pub(super) fn down(&self, segment: &Segment) -> Segment {
        let server = self.server_shift().unwrap_or(0);
        let client = self.promise.shift.unwrap_or(0);
        let options = read(&segment.options)
            .unwrap()
            .into_iter()
            .map(|option| match option {
                Opt::Times(value, echo) => {
                    Opt::Times(value.wrapping_sub(self.time_delta().unwrap_or(0)), echo)
                }
                other => other,
            });
        Segment {
            sequence: segment.sequence.wrapping_sub(self.delta()),
            window: rescaled(segment.window, server, client),
            options: options.flat_map(|option| option.bytes()).collect(),
            ..forwarded(segment)
        }
    }
}

/// The same number of bytes in another scale, or the most.
fn rescaled(window: u16, from: u8, to: u8) -> u16 {
    let octets = u64::from(window) << from >> to;
    // An open one stays open.
    u16::try_from(octets).unwrap_or(u16::MAX).max(window.min(1))
}

fn without_blocks(segment: &Segment) -> Segment {
    let options = read(&segment.options).unwrap().into_iter();
    let options = options.filter(|option| !matches!(option, Opt::Blocks(_)));
    Segment {
        options: options.flat_map(|option| option.bytes()).collect(),
        ..segment.clone()
    }
}
