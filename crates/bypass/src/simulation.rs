// SPDX-License-Identifier: Apache-2.0
//! Hands flows over at random moments between four TCP machines, over links that lose, delay,
//! duplicate and reorder.
//!
//! `POSTHASTE_SEED` sets the first seed, `POSTHASTE_SCHEDULES` how many schedules run.

mod forger;
mod link;
mod oracle;
mod world;

use posthaste_testkit::{schedules, seeds};
use world::{Defect, World};

#[test]
fn every_schedule_keeps_the_stream() {
    let count = schedules(1000);
    let (mut done, mut cut, mut killed) = (0, 0, 0);
    seeds(count, |seed| {
        let mut world = World::new(seed, None);
        let failure = world.run();
        assert!(failure.is_none(), "{failure:?} {world:?}");
        done += u64::from(world.is_direct());
        cut += u64::from(world.cut_at.is_some());
        killed += u64::from(world.is_dead());
    });
    println!("{count} schedules: {cut} cut, {done} handed over, {killed} killed in the overlap");
    assert!(
        count < 500 || done > count / 10,
        "hand-overs are rare: {done}"
    );
    assert!(
        count < 500 || killed > count / 500,
        "deaths are rare: {killed}"
    );
}

/// The oracle finds a hand-over that has the defect, and reports it in a line that has `symptom`, on
/// a schedule that is right without it. The search begins at the seed that showed it last.
fn assert_caught(defect: Defect, symptom: &str, first: u64) {
    let caught = (first..first + 20_000).find(|&seed| {
        let failure = World::new(seed, Some(defect)).run();
        let is_found = failure.is_some_and(|line| line.contains(symptom));
        is_found && World::new(seed, None).run().is_none()
    });
    assert!(caught.is_some(), "{defect:?} is not caught");
}

#[test]
fn finds_ends_reset_by_a_socket() {
    assert_caught(Defect::SocketsEndFlows, "reset", 18);
}

#[test]
fn finds_selective_acks_beyond_what_was_sent() {
    assert_caught(Defect::UnboundedSack, "SACK beyond snd_nxt", 4);
}

#[test]
fn finds_reneging_after_a_frozen_socket() {
    assert_caught(Defect::FrozenSocket, "reneg", 2);
}

#[test]
fn finds_a_window_taken_back() {
    assert_caught(Defect::NoClamp, "window edge", 2);
}

#[test]
fn finds_a_reset_for_a_late_copy() {
    assert_caught(Defect::EarlyClose, "reset", 2);
}

/// Blocks of both P and Y are true, and yet no receiver could have sent them together: P's ACK
/// reaches the cut where Y's block begins.
#[test]
fn finds_a_block_at_the_cut() {
    assert_caught(Defect::BlockAtCut, "reneg", 4);
}

/// An orderly end of one socket at the cut would truncate the stream.
#[test]
fn finds_a_fin_of_a_dead_process() {
    assert_caught(Defect::FinOfDead, "truncated", 4861);
}

/// A pure ACK behind a FIN that was lost has a number past the FIN: with the cut there, the FIN
/// would be P's, which ends no connection in the overlap.
#[test]
fn finds_a_cut_behind_a_lost_fin() {
    assert_caught(Defect::CutAtPureAck, "does not end", 2);
}

/// Once direct data moved an end's `rcv_nxt` past P's `snd_nxt`, P's ACKs are old segments to it.
#[test]
fn finds_acks_of_the_relay_that_are_too_old() {
    assert_caught(Defect::OldAckNumber, "does not end", 5552);
}

/// Some TCPs send a FIN where the window is used up: an ACK that is numbered behind it is
/// refused until the window moves.
#[test]
fn finds_acks_behind_a_fin_past_the_window() {
    assert_caught(Defect::AckBehindFin, "beyond the window", 7_337_375);
}

/// A RST that overtakes lost data is refused, and its socket does not send it again.
#[test]
fn finds_a_reset_that_was_refused() {
    assert_caught(Defect::OneReset, "stuck", 1);
}

/// Segments of one who sees none of the flow would move the cut, or acknowledge what is not there.
#[test]
fn finds_numbers_of_forged_segments() {
    assert_caught(Defect::ForgedNumbers, "", 1);
}

/// A RST within the window is a guess; its receiver does not believe it, and so the relay must not.
#[test]
fn finds_a_guessed_reset() {
    assert_caught(Defect::GuessedReset, "", 1);
}
