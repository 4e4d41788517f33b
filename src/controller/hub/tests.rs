// SPDX-License-Identifier: Apache-2.0
//! What happens at the same time.

use std::sync::Arc;
use std::thread;

use posthaste_control::message::LinkState;

use super::super::desk::Work;
use super::super::planner;
use super::fixture::{come, hub, say};
use super::*;

#[test]
fn of_two_tables_that_are_set_at_once_the_same_is_kept_and_in_force() {
    let hub = hub("set-at-once");
    let inner = hub.lock();
    let theirs = Arc::clone(&hub);
    let setting = thread::spawn(move || theirs.set_prefixes(BTreeMap::new()));
    let is_free = || hub.store.try_lock().is_ok();
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

/// Says all that is due to a node, which takes it. Whether rows were among it.
fn tell(hub: &Hub, seat: &Seat) -> bool {
    let mut has_rows = false;
    while let Some(due) = hub.due(seat.number, seat.ticket) {
        if let ToNode::Rows(rows) = due {
            let holds = ToController::Holds(rows.stamp);
            hub.heard(seat.number, seat.ticket, (holds, 1)).unwrap();
            has_rows = true;
        }
    }
    has_rows
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

#[test]
fn a_death_wakes_who_repairs_and_the_repair_wakes_who_is_told() {
    let hub = hub("death");
    let seats = [1, 2].map(|number| come(&hub, number));
    let next = || hub.lock().desk.work(hub.now());
    while let Some(work) = next() {
        planner::make(&hub, work);
    }
    for seat in &seats {
        assert!(is_woken(&seat.wake) && tell(&hub, seat));
        let _ = is_woken(&seat.wake);
    }
    let _ = is_woken(&hub.scheduler);
    say(&hub, &seats[0], LinkState::Dead);
    assert!(is_woken(&hub.scheduler));
    assert!(!is_woken(&seats[1].wake), "nothing is repaired yet");
    let repair = loop {
        if let Some(work) = next() {
            break work;
        }
        thread::sleep(Duration::from_millis(10));
    };
    assert!(matches!(repair, Work::Book(_, None)), "{repair:?}");
    planner::make(&hub, repair);
    for seat in &seats {
        assert!(is_woken(&seat.wake) && tell(&hub, seat));
    }
}
