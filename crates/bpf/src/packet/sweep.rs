// SPDX-License-Identifier: Apache-2.0
//! Walks the flow table in parts, and has the programs look after the flows of each.
//!
//! A program that walks the whole table holds up its CPU for tens of milliseconds once there are a
//! million flows: the kernel runs it with softirqs disabled, so that CPU receives nothing meanwhile.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

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
/// `PACKET_FIN_CLIENT`, `PACKET_FIN_SERVER`
const FINS: u32 = 1 | 2;
/// No open flow ends sooner, unless both ends have closed it (`IDLE_NS`).
const IDLE_MIN: Duration = Duration::from_hours(2);
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
    /// The keys of flows among which some wait for a SYN to be sent again.
    pub(super) due: Vec<u8>,
}

impl Sweep {
    pub(super) fn new(flows: &Arc<Map>) -> Self {
        Self {
            flows: Arc::clone(flows),
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
        while visited < ROUND_MAX {
            let (flows, keys, values) = (self.flows.as_fd(), &mut self.keys, &mut self.values);
            let batch = sys::look_up_batch(flows, self.cursor, keys, values, BATCH)?;
            let (keys, values) = (self.keys.chunks_exact(KEY_BYTES), &self.values);
            let flows = keys.zip(values.chunks_exact(VALUE_BYTES)).take(batch.count);
            self.candidates.clear();
            for (key, flow) in flows {
                if is_at_rest(flow, now) {
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
}

/// Whether a flow is open and no bound has passed: most are, and running a program on each would cost
/// four times as much as reading it. The program decides about all others.
fn is_at_rest(flow: &[u8], now: u64) -> bool {
    whole::<types::packet_flow>(flow).is_some_and(|flow| {
        flow.state == OPEN
            && flow.ended < FINS
            && now.saturating_sub(flow.last_ns) < nanoseconds(IDLE_MIN)
    })
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
                found.open += usize::from(flow.ended < FINS);
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
    let is_all_acked = flow.client_ack == flow.server_next && flow.server_ack == flow.client_next;
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
    use super::*;
    use crate::layout::bytes;
    use crate::object::Program;
    use crate::objects::packet_path::{map, program};
    use crate::packet::tests::{load, maps};

    const MILLION: u32 = 1_000_000;
    /// `PACKET_CLOSED`
    const CLOSED: u32 = 6;

    /// The sweep on a table of its own.
    fn sweep_of(entries: u32) -> (Arc<Map>, Program) {
        let maps = maps(entries);
        let flows = Arc::clone(&maps[map::PACKET_FLOWS]);
        (flows, load(program::PACKET_SWEEP, &maps))
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
        let (flows, program) = sweep_of(MILLION);
        let memory = sys::described(flows.as_fd(), "memlock:").unwrap();
        println!("{} bytes a flow", memory / MILLION);
        assert!(memory / MILLION <= 256, "{memory} bytes");
        let state = |number| if number % 10 == 0 { CLOSED } else { OPEN };
        fill(&flows, MILLION, state);
        let mut walk = Sweep::new(&flows);
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

    /// A reset ends a flow as two FINs do.
    #[test]
    fn flows_that_were_reset_are_swept() {
        let (flows, program) = sweep_of(1024);
        let since = posthaste_relay::sys::monotonic() - Duration::from_secs(60);
        for (number, ended) in (0..).zip([0, 1, FINS, 4]) {
            let flow = types::packet_flow {
                state: OPEN,
                ended,
                last_ns: nanoseconds(since),
                ..types::packet_flow::default()
            };
            flows.update(bytes(&key(number)), bytes(&flow)).unwrap();
        }
        assert_eq!(pass(&mut Sweep::new(&flows), &program), (2, 1));
    }

    #[test]
    fn an_empty_table_has_no_flows_left() {
        let (flows, program) = sweep_of(1024);
        assert_eq!(pass(&mut Sweep::new(&flows), &program), (0, 1));
    }
}
