// SPDX-License-Identifier: Apache-2.0
//! All numbers of the control, in one table. The build of `posthaste-bpf` translates it for the control in C: each line
//! has a number of a type, by arithmetic that C has too.

/// One, for gains.
pub(crate) const UNIT: u64 = 256;

/// Segments: of the first window (RFC 6928), and of the smallest.
pub(crate) const FIRST_SEGMENTS: u64 = 10;
pub(crate) const LEAST_SEGMENTS: u64 = 2;
/// Bytes: more than any path takes.
pub(crate) const WINDOW_MAX: u64 = 1 << 30;
/// Microseconds: longer than any round trip.
pub(crate) const RTT_MAX_US: u32 = 60_000_000;

/// What congestion leaves of the window: CUBIC's factor (RFC 9438).
pub(crate) const BETA: u64 = UNIT * 7 / 10;
/// The same where losses at random are known, which hide a shorter queue.
pub(crate) const BETA_RANDOM: u64 = UNIT * 85 / 100;
/// CUBIC's Reno-friendly growth, 3 (1 - beta) / (1 + beta).
pub(crate) const ALPHA: u64 = UNIT * 53 / 100;
/// What is left of what the path holds, if the window grew fast into it.
pub(crate) const OVERSHOT: u64 = UNIT * 85 / 100;
/// How long after congestion the window grows by CUBIC's law only: milliseconds, and in multiples of its K.
pub(crate) const CUBIC_MS: u32 = 5000;
pub(crate) const CUBIC_KS: u32 = 2;
/// C = 0.4 segments per second cubed, as the numerator of 1/256 segments per millisecond cubed; the denominator is
/// ten to the ten.
pub(crate) const C_NUMERATOR: u64 = 4 * UNIT;
pub(crate) const C_DENOMINATOR: u64 = 10_000_000_000;
/// Milliseconds: beyond, the law is not followed further.
pub(crate) const TIME_MAX: u64 = 200_000;

/// Pacing, beyond the window in a round trip: in startup, and else.
pub(crate) const PACING_STARTUP: u64 = 2 * UNIT;
pub(crate) const PACING: u64 = UNIT * 5 / 4;
/// The same after a drain: with more, what returns at once overflows a short queue.
pub(crate) const PACING_REFILL: u64 = UNIT * 11 / 10;

/// A queue is seen when the round trip is longer by a sixteenth of the least and so many microseconds.
pub(crate) const QUEUE_SHIFT: u32 = 4;
pub(crate) const QUEUE_US: u32 = 1000;
/// There is none if it is longer by no more than a 32nd and so many.
pub(crate) const NO_QUEUE_SHIFT: u32 = 5;
pub(crate) const NO_QUEUE_US: u32 = 300;
/// So many ACKs in a row that see one end the startup.
pub(crate) const QUEUED_ACKS: u8 = 8;
/// An own queue of more than so much of the least round trip is drained.
pub(crate) const DELAY: u64 = UNIT * 4 / 10;
/// Without another sender's signs the window grows by a segment in a round for so many microseconds of the least round
/// trip, which counts as so long at least.
pub(crate) const STEP_US: u64 = 5_000;
pub(crate) const STEP_LEAST_US: u32 = 5_000;
/// The window grows faster after so many rounds without a queue, each time by twice as much.
pub(crate) const FREE_ROUNDS: u8 = 3;

/// Milliseconds from one drain to the next, by the clock, and how long one lasts beyond a round trip and a half.
pub(crate) const DRAIN_INTERVAL_MS: u32 = 5000;
pub(crate) const DRAIN_MS: u32 = 20;
/// The same beside another sender.
pub(crate) const CONTENDED_INTERVAL_MS: u32 = 10_000;
/// What is in flight meanwhile, of what the path holds.
pub(crate) const DRAIN: u64 = UNIT * 3 / 4;
/// Another sender's queue: what is left at the end, beyond an eighth of the least round trip.
pub(crate) const CONTENDED_SHIFT: u32 = 3;
/// Drains without one after which there is no other sender.
pub(crate) const CONTENDED_DRAINS: u8 = 2;

/// The most in flight where losses are no bound, of what the path holds.
pub(crate) const HELD_MOST: u64 = 2 * UNIT;

/// Packets that a share of losses is of; beyond, all counts are halved.
pub(crate) const LOSS_PACKETS: u16 = 1024;
/// Losses that show a share.
pub(crate) const LOSSES_LEAST: u16 = 5;
/// Losses are random if the share at a low load is at least so much of that at a high one, and as long as it is so
/// much.
pub(crate) const RANDOM: u64 = UNIT / 2;
pub(crate) const RANDOM_STILL: u64 = UNIT * 3 / 10;
/// No path loses more than that at random.
pub(crate) const RANDOM_MOST: u64 = UNIT * 15 / 100;
/// The load is low if the window is at most so much of that at the last congestion.
pub(crate) const LOW_LOAD: u64 = UNIT * 87 / 100;
/// What a congestion leaves of what the path carried at former ones, unless it carries more.
pub(crate) const CARRIED: u64 = UNIT * 7 / 8;
/// And so is that of so few segments.
pub(crate) const TINY_SEGMENTS: u64 = 6;
/// Lost in a round beyond one and a half of the random share, in packets, and of all, that show congestion.
pub(crate) const EXCESS_PACKETS: u64 = 3;
pub(crate) const EXCESS: u64 = UNIT / 100;
/// Startup goes on with so many lost packets in a round, or such a share of them, as long as no queue is seen.
pub(crate) const STARTUP_LOSSES: u64 = 3;
pub(crate) const STARTUP_LOSS: u64 = UNIT / 8;

/// A round trip is another sender's, or of a longer path, if it is so much longer than the own bytes explain.
pub(crate) const FOREIGN: u64 = UNIT * 14 / 10;
/// The same round trip as before: within a sixteenth.
pub(crate) const SAME_SHIFT: u32 = 4;
/// After so many rounds of it,
pub(crate) const FLAT_ROUNDS: u8 = 2;
/// the window is raised by this, for so many rounds more than one.
pub(crate) const TRY: u64 = UNIT * 5 / 4;
pub(crate) const TRIED_ROUNDS: u8 = 1;

/// Milliseconds for which a sender with BBR has next to nothing in flight, with what is needed to fill the queue again,
/// and in multiples of the least round trip beyond.
pub(crate) const RIVAL_DIP_MS: u32 = 300;
pub(crate) const RIVAL_DIP_ROUNDS: u32 = 6;
/// What a full queue adds to the least round trip, with that: in a shorter one CUBIC looks alike.
pub(crate) const RIVAL_FULL: u64 = UNIT * 9 / 7;
/// Rounds in which the queue empties.
pub(crate) const RIVAL_EMPTIES: u8 = 4;
/// The least time from one such dip to the next, in milliseconds.
pub(crate) const RIVAL_LEAST_MS: u16 = 9_000;
/// Without one for so long, the sender is gone.
pub(crate) const RIVAL_GONE_MS: u16 = 25_000;
/// Dips that show such a sender.
pub(crate) const RIVAL_DIPS: u8 = 2;
/// More losses than that in a round count as congestion beside it.
pub(crate) const RIVAL_LOSS: u64 = UNIT / 5;
