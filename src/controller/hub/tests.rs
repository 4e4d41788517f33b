// SPDX-License-Identifier: Apache-2.0
//! What happens at the same time.

use std::sync::Arc;
use std::thread;

use posthaste_control::message::{Link, LinkState};

use super::super::desk::Work;
use super::super::planner;
use super::*;
use crate::journal;

const CONFIG: &str = "version = 1
[server]
listen = [\"127.0.0.1:4490\"]
identity_file = \"/etc/posthaste/rome.key\"
[[node]]
name = \"paris\"
id = 1
key = \"1111111111111111111111111111111111111111111111111111111111111111\"
[[node]]
name = \"rome\"
id = 2
key = \"2222222222222222222222222222222222222222222222222222222222222222\"
";

fn hub(name: &str) -> Arc<Hub> {
    let host = &crate::config::invariants::HOST;
    let config = Controller::parse("controller.toml".as_ref(), CONFIG, host).unwrap();
    let path = std::env::temp_dir().join(format!("ph-{name}-{}.redb", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let (store, contents, _) = Store::open(&path).unwrap();
    // The file is open and needs no name any more.
    std::fs::remove_file(&path).unwrap();
    let (log, _) = journal::start(false).unwrap();
    Arc::new(Hub::new(config, store, contents, log))
}

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

/// One of two nodes comes, and says what its link to the other is.
fn come(hub: &Hub, number: NodeNumber) -> Seat {
    let key = hub.lock().keys()[&number];
    let hello = Hello {
        version: VERSION,
        number,
        software: String::new(),
        exchange: [0; 32],
        listeners: Vec::new(),
        reflectors: Vec::new(),
        holds: None,
    };
    let from = ([127, 0, 0, 1], 9).into();
    let seat = hub.enter(hello, key, from).unwrap();
    let state = LinkState::Up {
        rtt_us: 20_000,
        loss_ppm: None,
        rate: None,
    };
    say(hub, &seat, state);
    seat
}

fn say(hub: &Hub, seat: &Seat, state: LinkState) {
    let to = 3 - seat.number;
    let links = ToController::Links(vec![Link { to, state }]);
    hub.heard(seat.number, seat.ticket, (links, 1)).unwrap();
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
