// SPDX-License-Identifier: Apache-2.0
//! What happens at the same time.

use std::sync::Arc;
use std::thread;

use posthaste_control::message::LinkState;

use super::super::planner;
use super::super::state::Work;
use super::fixture::{come, report, server};
use super::*;

// promise: O11
#[test]
fn concurrent_tables_stay_consistent() {
    let server = server("set-at-once");
    let inner = server.lock();
    let theirs = Arc::clone(&server);
    let setting = thread::spawn(move || theirs.set_prefixes(BTreeMap::new()));
    let is_free = || server.store.try_lock().is_ok();
    let start = Instant::now();
    while is_free() {
        assert!(start.elapsed() < Duration::from_secs(30), "it is kept");
    }
    // Nobody sets another before this one is in force, which the lock prevents now.
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(5));
        assert!(!is_free());
    }
    drop(inner);
    setting.join().unwrap().unwrap();
    assert!(is_free());
}

/// Sends all that is due to a node, which takes it. Whether rows were among it.
fn send(server: &Server, session: &Session) -> bool {
    let mut has_update = false;
    while let Some(due) = server.due(session.number, session.ticket) {
        if let ToNode::RouteUpdate(update) = due {
            let holds = ToController::Holds(update.plan_version);
            server
                .received(session.number, session.ticket, (holds, 1))
                .unwrap();
            has_update = true;
        }
    }
    has_update
}

/// Whether who waits is woken. Nobody is woken twice.
fn is_woken(wake: &Notify) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let woken = tokio::time::timeout(Duration::ZERO, wake.notified());
        woken.await.is_ok()
    })
}

// promise: V10
#[test]
fn death_wakes_repair_and_senders() {
    let server = server("death");
    let sessions = [1, 2].map(|number| come(&server, number));
    let next = || server.lock().state.work(server.now());
    while let Some(work) = next() {
        planner::make(&server, work);
    }
    for session in &sessions {
        assert!(is_woken(&session.wake) && send(&server, session));
        let _ = is_woken(&session.wake);
    }
    let _ = is_woken(&server.scheduler);
    report(&server, &sessions[0], LinkState::Dead);
    assert!(is_woken(&server.scheduler));
    assert!(!is_woken(&sessions[1].wake), "nothing is repaired yet");
    let repair = loop {
        if let Some(work) = next() {
            break work;
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(matches!(repair, Work::Rib(_, None)), "{repair:?}");
    planner::make(&server, repair);
    for session in &sessions {
        assert!(is_woken(&session.wake) && send(&server, session));
    }
}
