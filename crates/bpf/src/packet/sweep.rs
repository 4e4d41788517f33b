// SPDX-License-Identifier: Apache-2.0
//! Walks the flow table in parts, and has the programs look after the flows of each.
//!
//! A program that walks the whole table holds up its CPU for tens of milliseconds once there are a
//! million flows: the kernel runs it with softirqs disabled, so that CPU receives nothing meanwhile.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::{CONTEXT_CB, CONTEXT_WORDS};
use crate::layout::{nanoseconds, octets, whole};
use crate::object::Map;
use crate::objects::types;
use crate::sys;

/// Keys in the frame of one run: what a page has room for beside the kernel's own bytes.
const KEYS_MAX: usize = 96;
const KEY_BYTES: usize = size_of::<types::packet_key>();
const VALUE_BYTES: usize = size_of::<types::packet_flow>();
/// Flows that are read at a time. A bucket that has more would end the walk; the table has one for
/// each flow.
const BATCH: usize = 4096;
/// Most flows of a round: 50 ms of kernel time. A larger table takes several.
const ROUND_MAX: usize = 131_072;
/// Keys start behind a link layer header, without which the kernel does not run a program.
const KEYS_AT: usize = 14;
/// `ETH_P_IP`, `ETH_P_IPV6`
const PROTOCOLS: [u16; 2] = [0x0800, 0x86dd];
/// `PACKET_OPEN`
const OPEN: u32 = 4;
/// From `PACKET_ANSWERED` to `PACKET_OPEN`, and `PACKET_ABORTED`
const ANSWERED: [u32; 5] = [1, 2, 3, OPEN, 7];
/// `PACKET_FINS`
const FINS: u32 = 1 | 2;
/// `PACKET_RESET`
const RESET: u32 = 4;
/// What the keeper of a living node passes to the sweep in `cb[0]` (`SWEEP_ALIVE`), and who ends the packet
/// path (`SWEEP_LAST`).
const ALIVE: u32 = 1;
const LAST: u32 = 2;
/// Return value of the sweep: the flows that are left, and above these bits those that are due.
const LEFT_BITS: u32 = 16;

/// A walk.
#[derive(Debug)]
pub(super) struct Sweep {
    flows: Arc<Map>,
    patience: Arc<Map>,
    keys: Vec<u8>,
    values: Vec<u8>,
    /// Keys of the flows that a program has to look after.
    candidates: Vec<u8>,
    /// Where the walk goes on; `None`: at the start.
    cursor: Option<u32>,
    left: usize,
}

/// What a round did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// Flows that were left at the end of the table, once it was reached.
    pub(super) left: Option<usize>,
    /// The keys of flows among which some wait for a segment of the node.
    due: Vec<u8>,
}

impl Round {
    /// Has the program `resend` send what is due.
    pub(super) fn act(&self, resend: BorrowedFd<'_>) {
        for key in each(&self.due) {
            // The next round tries again.
            let _ = run_on_flow(resend, key);
        }
    }
}

impl Sweep {
    pub(super) fn new(flows: &Arc<Map>, patience: &Arc<Map>) -> Self {
        Self {
            flows: Arc::clone(flows),
            patience: Arc::clone(patience),
            keys: vec![0; BATCH * KEY_BYTES],
            values: vec![0; BATCH * VALUE_BYTES],
            candidates: Vec::new(),
            cursor: None,
            left: 0,
        }
    }

    /// Looks after the next part of the table. What it removes makes room at once.
    pub(super) fn round(&mut self, program: BorrowedFd<'_>) -> io::Result<Round> {
        let mut round = Round::default();
        let mut visited = 0;
        let now = nanoseconds(posthaste_relay::sys::monotonic());
        // Those after the last segment that are quiet, since before they were aged.
        let quiet_since = now.saturating_sub(self.idle_ns()?);
        while visited < ROUND_MAX {
            let (flows, keys, values) = (self.flows.as_fd(), &mut self.keys, &mut self.values);
            let batch = sys::look_up_batch(flows, self.cursor, keys, values, BATCH)?;
            let (keys, values) = (self.keys.chunks_exact(KEY_BYTES), &self.values);
            let flows = keys.zip(values.chunks_exact(VALUE_BYTES)).take(batch.count);
            self.candidates.clear();
            for (key, flow) in flows {
                if is_at_rest(flow, quiet_since) {
                    self.left += 1;
                } else {
                    self.candidates.extend_from_slice(key);
                }
            }
            for keys in self.candidates.chunks(KEYS_MAX * KEY_BYTES) {
                let done = run(program, keys, 0)?;
                self.left += (done & ((1 << LEFT_BITS) - 1)) as usize;
                if done >> LEFT_BITS != 0 {
                    round.due.extend_from_slice(keys);
                }
            }
            visited += batch.count;
            self.cursor = batch.next;
            if self.cursor.is_none() {
                round.left = Some(std::mem::take(&mut self.left));
                break;
            }
        }
        Ok(round)
    }

    /// How long a flow may be quiet.
    fn idle_ns(&self) -> io::Result<u64> {
        let mut value = [0; size_of::<types::packet_patience>()];
        self.patience.look_up(&[0; 4], &mut value)?;
        let patience = whole::<types::packet_patience>(&value);
        Ok(patience.map_or(0, |patience| patience.idle_ns))
    }
}

/// Whether a flow is open and had a segment of late, and nobody waits for an end of it: most are, and running a
/// program on each would cost four times as much as reading it. The program decides about all others.
fn is_at_rest(flow: &[u8], quiet_since: u64) -> bool {
    whole::<types::packet_flow>(flow)
        .is_some_and(|flow| flow.state == OPEN && flow.ended < FINS && flow.last_ns >= quiet_since)
}

/// Shows the programs that the node lives.
pub(super) fn show_life(program: BorrowedFd<'_>) -> io::Result<()> {
    // No flow has the key of zeros.
    run(program, &[0; KEY_BYTES], ALIVE).map(drop)
}

/// Has the programs take no more flows.
pub(super) fn take_no_more(program: BorrowedFd<'_>) -> io::Result<()> {
    run(program, &[0; KEY_BYTES], LAST).map(drop)
}

/// Runs the sweep on keys.
fn run(program: BorrowedFd<'_>, keys: &[u8], alive: u32) -> io::Result<u32> {
    let mut context = [0; CONTEXT_WORDS];
    context[CONTEXT_CB] = alive;
    let mut frame = vec![0; KEYS_AT];
    frame.extend_from_slice(keys);
    sys::run(program, &frame, &context, None)
}

/// The keys, one by one.
pub(super) fn each(keys: &[u8]) -> impl Iterator<Item = &[u8]> {
    keys.chunks_exact(KEY_BYTES)
}

/// Flows whose ends may wait for each other.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    pub(super) keys: Vec<u8>,
    /// Those that neither both ends nor a reset has ended.
    pub(super) open: usize,
}

pub(super) fn unfinished(flows: &Map) -> io::Result<Unfinished> {
    let mut keys = vec![0; BATCH * KEY_BYTES];
    let mut values = vec![0; BATCH * VALUE_BYTES];
    let (mut found, mut cursor) = (Unfinished::default(), None);
    loop {
        let batch = sys::look_up_batch(flows.as_fd(), cursor, &mut keys, &mut values, BATCH)?;
        let pairs = each(&keys).zip(values.chunks_exact(VALUE_BYTES));
        for (key, value) in pairs.take(batch.count) {
            if let Some(flow) = whole::<types::packet_flow>(value).filter(is_unfinished) {
                found.keys.extend_from_slice(key);
                let is_open = flow.ended & FINS != FINS && flow.ended & RESET == 0;
                found.open += usize::from(is_open);
            }
        }
        cursor = batch.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

/// Whether its client has an answer, and one of the ends may still wait for the other.
fn is_unfinished(flow: &types::packet_flow) -> bool {
    let is_all_acked = flow.down.acked == flow.down.fin && flow.up.acked == flow.up.fin;
    let is_over = flow.ended & FINS == FINS && is_all_acked;
    ANSWERED.contains(&flow.state) && !is_over
}

/// Runs a program that sends something on behalf of one flow. Returns what it returns.
pub(super) fn run_on_flow(program: BorrowedFd<'_>, key: &[u8]) -> io::Result<u32> {
    let family = usize::from(!is_ipv4(key));
    let mut frame = [0; 64];
    frame[KEYS_AT - 2..KEYS_AT].copy_from_slice(&PROTOCOLS[family].to_be_bytes());
    frame[KEYS_AT..KEYS_AT + KEY_BYTES].copy_from_slice(key);
    sys::run(program, &frame, &[0; CONTEXT_WORDS], None)
}

/// Whether the flow of a key is of IPv4.
fn is_ipv4(key: &[u8]) -> bool {
    whole::<types::packet_key>(key)
        .is_some_and(|key| Ipv6Addr::from(octets(key.first)).to_ipv4_mapped().is_some())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::layout::bytes;
    use crate::object::Program;
    use crate::objects::packet_path::{map, program};
    use crate::packet::tests::{load, maps};

    const MILLION: u32 = 1_000_000;
    /// `PACKET_HELD`, `PACKET_GIVEN_UP`, `PACKET_CLOSED`
    const HELD: u32 = 3;
    const GIVEN_UP: u32 = 5;
    const CLOSED: u32 = 6;

    /// The sweep on a table of its own, and a walk over that.
    fn sweep_of(entries: u32) -> (Vec<Arc<Map>>, Program, Sweep) {
        let maps = maps(entries);
        let program = load(program::PACKET_SWEEP, &maps);
        let walk = Sweep::new(&maps[map::PACKET_FLOWS], &maps[map::PACKET_PATIENCE]);
        (maps, program, walk)
    }

    fn key(number: u32) -> types::packet_key {
        let mut key = types::packet_key::default();
        key.first.word[3] = number;
        key
    }

    fn fill(flows: &Map, count: u32, state: impl Fn(u32) -> u32) {
        let now = posthaste_relay::sys::monotonic();
        let flow = |number| types::packet_flow {
            state: state(number),
            last_ns: match state(number) {
                OPEN => nanoseconds(now),
                _ => 0,
            },
            ..types::packet_flow::default()
        };
        for number in 0..count {
            flows
                .update(bytes(&key(number)), bytes(&flow(number)))
                .unwrap();
        }
    }

    /// CPU time of this thread in the kernel, which does not depend on other load, nor on how this
    /// crate is compiled.
    fn kernel_time() -> Duration {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes the usage there, and zeros are valid before.
        let usage = unsafe {
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
            usage.assume_init()
        };
        let seconds = Duration::from_secs(usage.ru_stime.tv_sec.try_into().unwrap());
        seconds + Duration::from_micros(usage.ru_stime.tv_usec.try_into().unwrap())
    }

    /// Rounds until the end of the table.
    fn pass(walk: &mut Sweep, program: &Program) -> (usize, usize) {
        for rounds in 1.. {
            if let Some(left) = walk.round(program.as_fd()).unwrap().left {
                return (left, rounds);
            }
        }
        unreachable!("a table has an end")
    }

    /// Every tenth flow has ended long ago.
    #[test]
    fn a_million_flows_are_swept_in_parts() {
        let (maps, program, mut walk) = sweep_of(MILLION);
        let flows = &maps[map::PACKET_FLOWS];
        let memory = sys::described(flows.as_fd(), "memlock:").unwrap();
        println!("{} bytes a flow", memory / MILLION);
        assert!(memory / MILLION <= 272, "{memory} bytes");
        let state = |number| if number % 10 == 0 { CLOSED } else { OPEN };
        fill(flows, MILLION, state);
        let started = kernel_time();
        let (left, rounds) = pass(&mut walk, &program);
        println!(
            "{rounds} rounds, {:?} of kernel time",
            kernel_time() - started
        );
        assert_eq!(left, 900_000);
        assert!(rounds >= 7, "a round is bounded: {rounds}");
        let started = kernel_time();
        assert_eq!(pass(&mut walk, &program).0, 900_000, "the others stay");
        println!("again {:?}", kernel_time() - started);
    }

    /// Which of these flows are left, by the seconds since their SYN or their last segment.
    fn left_of(flows: &[(types::packet_flow, u64)], half_open: u32) -> Vec<bool> {
        let (maps, program, mut walk) = sweep_of(1024);
        let table = &maps[map::PACKET_FLOWS];
        // Behind the heartbeat. The budget is 1.
        let mut control = [0; 24 + 1024];
        control[8..12].copy_from_slice(&half_open.to_ne_bytes());
        maps[map::PACKET_CONTROL].update(&[0; 4], &control).unwrap();
        let now = posthaste_relay::sys::monotonic();
        for (number, (flow, seconds)) in (0..).zip(flows) {
            let then = nanoseconds(now - Duration::from_secs(*seconds));
            let aged = types::packet_flow {
                since_ns: then,
                last_ns: then,
                ..*flow
            };
            table.update(bytes(&key(number)), bytes(&aged)).unwrap();
        }
        let (left, _) = pass(&mut walk, &program);
        let is_left = |number| {
            let mut value = [0; VALUE_BYTES];
            table.look_up(bytes(&key(number)), &mut value).unwrap()
        };
        let each: Vec<bool> = (0..).take(flows.len()).map(is_left).collect();
        assert_eq!(left, each.iter().filter(|is_left| **is_left).count());
        each
    }

    fn open(ended: u32) -> types::packet_flow {
        types::packet_flow {
            state: OPEN,
            ended,
            ..types::packet_flow::default()
        }
    }

    // promise: PK12
    /// Only a reset and two FINs that are acknowledged end a flow.
    #[test]
    fn flows_that_have_ended_are_swept() {
        let fin = types::packet_way {
            fin: 9,
            ..types::packet_way::default()
        };
        let unread = types::packet_flow {
            down: fin,
            ..open(FINS)
        };
        let unsent = types::packet_flow {
            up: fin,
            ..open(FINS)
        };
        let flows = [
            open(0),
            open(1),
            open(2),
            open(FINS),
            open(RESET),
            unread,
            unsent,
        ];
        let late = flows.map(|flow| (flow, 60));
        let left = [true, true, true, false, false, true, true];
        assert_eq!(left_of(&late, 0), left);
        assert_eq!(left_of(&flows.map(|flow| (flow, 10)), 0), [true; 7]);
    }

    // promise: PK16
    /// A client has as long as a host gives it, and less while many are half-open.
    #[test]
    fn slow_handshakes_are_swept_when_there_are_many() {
        let flow = |state| types::packet_flow {
            state,
            ..types::packet_flow::default()
        };
        let [answered, accepted] = [1, 2].map(flow);
        let flows = [
            (answered, 3),
            (answered, 20),
            (accepted, 20),
            (answered, 70),
        ];
        assert_eq!(left_of(&flows[..3], 0), [true; 3]);
        assert_eq!(left_of(&flows[3..], 0), [false]);
        assert_eq!(left_of(&flows, 4), [true, false, false, false]);
    }

    // promise: PK16
    /// A server has as long as the rule of its flow grants; then the client is to be reset.
    #[test]
    fn servers_have_the_time_of_their_rule() {
        let held = |connect_cs| types::packet_flow {
            state: HELD,
            connect_cs,
            ..types::packet_flow::default()
        };
        let (maps, program, mut walk) = sweep_of(1024);
        let table = &maps[map::PACKET_FLOWS];
        let since = posthaste_relay::sys::monotonic() - Duration::from_secs(20);
        for (number, connect_cs) in [(0, 1_000), (1, 3_000)] {
            let flow = types::packet_flow {
                since_ns: nanoseconds(since),
                ..held(connect_cs)
            };
            table.update(bytes(&key(number)), bytes(&flow)).unwrap();
        }
        assert_eq!(pass(&mut walk, &program).0, 2);
        let state = |number| {
            let mut value = [0; VALUE_BYTES];
            assert!(table.look_up(bytes(&key(number)), &mut value).unwrap());
            whole::<types::packet_flow>(&value).unwrap().state
        };
        assert_eq!([state(0), state(1)], [GIVEN_UP, HELD]);
    }

    #[test]
    fn an_empty_table_has_no_flows_left() {
        let (_maps, program, mut walk) = sweep_of(1024);
        assert_eq!(pass(&mut walk, &program), (0, 1));
    }
}
