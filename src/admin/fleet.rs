// SPDX-License-Identifier: Apache-2.0
//! Queries to the workers of this node. All calls except [`Roll`] may block for up to
//! [`ANSWER_TIME_MAX`]; call them from blocking threads only.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use posthaste_relay::control::{Command, Handle, RelayId, RelayInfo};

use crate::api::{Detail, Relay, Relays};
use crate::chains::Workers;

/// How long a worker may take to answer before it counts as stuck.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Queries every worker. The error is whether it is too slow or has ended.
fn query_all<T>(
    workers: &[Handle],
    question: impl Fn(Sender<T>) -> Command,
) -> Vec<Result<T, RecvTimeoutError>> {
    let requested = pose(workers, question);
    // One deadline for all, since they answer at the same time.
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let wait = |answers: Receiver<T>| {
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    };
    requested.into_iter().map(wait).collect()
}

/// Sends the query to every worker.
fn pose<T>(workers: &[Handle], question: impl Fn(Sender<T>) -> Command) -> Vec<Receiver<T>> {
    let query = |worker: &Handle| {
        let (answer, answers) = channel();
        worker.send(question(answer));
        answers
    };
    workers.iter().map(query).collect()
}

fn query_owner<T>(
    workers: &[Handle],
    id: RelayId,
    question: impl Fn(Sender<T>) -> Command,
) -> Option<T> {
    let owner = workers.get(id.worker())?;
    query_all(std::slice::from_ref(owner), question).pop()?.ok()
}

/// Up to `limit` relays of the whole node.
pub(super) fn list(workers: &[Handle], limit: usize) -> Relays {
    // One more than is shown, to detect whether there are more: counters of another moment cannot.
    let requested = limit.saturating_add(1);
    let answers = query_all(workers, |answer| Command::List {
        limit: requested,
        answer,
    });
    let silent_workers = answers.iter().filter(|answer| answer.is_err()).count();
    let mut relays: Vec<Relay> = answers
        .into_iter()
        .flatten()
        .flatten()
        .map(Into::into)
        .collect();
    let cut = relays.len() > limit;
    relays.truncate(limit);
    Relays {
        incomplete: cut || silent_workers > 0,
        silent_workers,
        packet_flows: Vec::new(),
        relays,
    }
}

/// One relay; `None` if it does not exist.
pub(super) fn show(workers: &[Handle], id: RelayId) -> Option<Detail> {
    let answer = query_owner(workers, id, |answer| Command::Show { id, answer })?;
    answer.map(Into::into)
}

/// Resets both sides of a relay; returns whether it existed.
pub(super) fn kill(workers: &[Handle], id: RelayId) -> bool {
    query_owner(workers, id, |answer| Command::Kill { id, answer }) == Some(true)
}

/// The workers' knowledge of other nodes.
pub(super) fn known(workers: &[Handle]) -> Workers {
    let answers = query_all(workers, |answer| Command::Peers { answer });
    Workers {
        incomplete: answers.iter().any(Result::is_err),
        known: answers.into_iter().flatten().collect(),
    }
}

/// Whether every worker's loop runs.
pub(super) fn alive(workers: &[Handle]) -> bool {
    // The cheapest query: only whether there is an answer counts.
    let answers = query_all(workers, |answer| Command::List { limit: 0, answer });
    answers.iter().all(Result::is_ok)
}

/// A query to all workers whose answers are collected later.
pub(super) struct Roll(Vec<Receiver<Vec<RelayInfo>>>);

impl Roll {
    /// Queries every worker. Does not block.
    pub(super) fn call(workers: &[Handle]) -> Self {
        Self(pose(workers, |answer| Command::List { limit: 0, answer }))
    }

    /// Number of workers that have ended, as far as known: such a worker has dropped the query.
    pub(super) fn ended(&self) -> usize {
        let gone =
            |answers: &&Receiver<_>| matches!(answers.try_recv(), Err(TryRecvError::Disconnected));
        self.0.iter().filter(gone).count()
    }
}
