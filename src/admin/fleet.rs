// SPDX-License-Identifier: Apache-2.0
//! Questions to the workers of this node. Everything but [`Roll`] may block for
//! up to [`ANSWER_TIME_MAX`] and is called from blocking threads only.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use posthaste_relay::control::{Command, Handle, RelayId, RelayInfo};

use super::api::{Detail, Relay, Relays};
use crate::chains::Workers;

/// How long a worker may take to answer; one that does not is stuck.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Asks every worker. An error says whether it is too slow or has ended.
fn query_all<T>(
    workers: &[Handle],
    question: impl Fn(Sender<T>) -> Command,
) -> Vec<Result<T, RecvTimeoutError>> {
    let requested = pose(workers, question);
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let wait = |answers: Receiver<T>| {
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    };
    requested.into_iter().map(wait).collect()
}

/// Sends every worker the question.
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
    // One more than is shown: whether there is one, counters of another moment cannot tell.
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
        relays,
    }
}

/// One relay; `None` when there is no such relay.
pub(super) fn show(workers: &[Handle], id: RelayId) -> Option<Detail> {
    let answer = query_owner(workers, id, |answer| Command::Show { id, answer })?;
    answer.map(Into::into)
}

/// Resets both sides of a relay; whether it existed.
pub(super) fn kill(workers: &[Handle], id: RelayId) -> bool {
    query_owner(workers, id, |answer| Command::Kill { id, answer }) == Some(true)
}

/// What the workers know of other nodes.
pub(super) fn known(workers: &[Handle]) -> Workers {
    let answers = query_all(workers, |answer| Command::Peers { answer });
    Workers {
        incomplete: answers.iter().any(Result::is_err),
        known: answers.into_iter().flatten().collect(),
    }
}

/// Whether every worker turns.
pub(super) fn alive(workers: &[Handle]) -> bool {
    let answers = query_all(workers, |answer| Command::List { limit: 0, answer });
    answers.iter().all(Result::is_ok)
}

/// A roll call whose answers are looked at later.
pub(super) struct Roll(Vec<Receiver<Vec<RelayInfo>>>);

impl Roll {
    /// Calls every worker. Does not block.
    pub(super) fn call(workers: &[Handle]) -> Self {
        Self(pose(workers, |answer| Command::List { limit: 0, answer }))
    }

    /// How many workers have ended, as far as is known yet: one that has
    /// drops the question.
    pub(super) fn ended(&self) -> usize {
        let gone =
            |answers: &&Receiver<_>| matches!(answers.try_recv(), Err(TryRecvError::Disconnected));
        self.0.iter().filter(gone).count()
    }
}
