// SPDX-License-Identifier: Apache-2.0
//! The same node in many states.

use serde_json::{Value, json};

use super::*;

const LINES_MAX: usize = 10;

/// A node that has just started, with `changes` applied.
fn status_of(changes: &Value) -> Status {
    let mut status = json!({
        "version": "1.0", "pid": 7, "state": "ready", "started": "", "uptime_seconds": 3_700.0,
        "config": null, "workers": 2, "transparent": true, "blocked": false,
        "interfaces": [
            {"name": "c0", "index": 1, "attached": true, "hold": "tcx"},
            {"name": "s0", "index": 2, "attached": true, "hold": "tcx"},
        ],
        "counters": {}, "ended": {}, "redirect": {}, "rules": [], "controller": null,
        "saved": {"relays": 0, "first_byte_seconds": 0.0, "end_seconds": 0.0,
            "slower": 0, "slower_seconds": 0.0},
        "reloads": {"succeeded": 0, "failed": 0, "last_success_unix_seconds": 0.0, "last_error": null},
        "guard": {"pid": 2, "restarts": 0}, "deadline_seconds": null, "replaced": [],
        "process": {"binary": "", "supervised": false, "watchdog_us": null},
    });
    let changes = changes.as_object().unwrap().clone();
    status.as_object_mut().unwrap().extend(changes);
    serde_json::from_value(status).unwrap()
}

fn shown(changes: &Value) -> String {
    status(&status_of(changes))
}

fn busy() -> Value {
    json!({
        "counters": {"relays_opened": 1200, "relays": 12, "bytes_up": 2048, "bytes_down": 5 << 20},
        "saved": {"relays": 1000, "first_byte_seconds": 200.0, "end_seconds": 7_300.0,
            "slower": 1, "slower_seconds": 0.25},
    })
}

#[test]
fn fresh_node_summary() {
    assert_eq!(
        shown(&json!({})),
        "posthaste 1.0 is ready and relays on c0, s0; up 1h01m, process 7.\n\
         It has relayed nothing yet.\n"
    );
}

#[test]
fn packet_path_sentence() {
    let line = |changes: &Value| shown(changes).lines().nth(1).map(str::to_owned);
    let redirect = json!({"observed": 9, "packet_opened": 1722});
    assert_eq!(
        line(&json!({"redirect": redirect})).as_deref(),
        Some("It has answered 1722 connections on the packet path.")
    );
    let mut both = busy();
    both["redirect"] = redirect;
    let text = line(&both).unwrap();
    assert!(
        text.starts_with(
            "It has answered 1722 connections on the packet path. It has relayed 1200"
        )
    );
}

/// By default nothing else shows that the better way is not taken.
#[test]
fn missing_packet_path_is_a_trouble() {
    let text = shown(&json!({"packet_path_trouble": "no BPF file system is mounted"}));
    assert!(
        text.starts_with(
            "TROUBLE: there is no packet path, so data_path = \"auto\" means sockets: no BPF file system \
             is mounted"
        ),
        "{text}"
    );
}

#[test]
fn saved_time_sentence() {
    assert_eq!(
        shown(&busy()).lines().skip(1).collect::<Vec<_>>(),
        [
            "It has relayed 1200 connections, of which 12 are open now: 5.00 MiB to clients, \
             2.00 KiB to servers.",
            "It saved 1000 connections at least 3m20s to the first byte (200 ms each) and 2h01m to \
             the end.",
            "It made 1 connection slower, by 250 ms in all.",
        ]
    );
}

// promise: W8
#[test]
fn trouble_comes_first() {
    let text = shown(&json!({"guard": {"pid": null, "restarts": 1}}));
    assert!(text.starts_with("TROUBLE: there is no guard"), "{text}");
    assert_eq!(text.lines().count(), 3);
    let text = shown(&json!({"interfaces": []}));
    assert!(text.starts_with("TROUBLE: no interface"), "{text}");
    let tunnels = |counters: &[(&str, u64)]| {
        let counters: serde_json::Map<_, _> = counters
            .iter()
            .map(|(name, count)| ((*name).to_owned(), json!(count)))
            .collect();
        shown(&json!({ "counters": counters })).starts_with("TROUBLE: no tunnel to a peer")
    };
    assert!(tunnels(&[("tunnel_peers_down", 1), ("tunnels_lost", 2)]));
    // Others were accepted, or are with another peer.
    let others = [
        ("tunnel_peers_down", 1),
        ("tunnels_lost", 2),
        ("tunnels_up", 3),
    ];
    assert!(!tunnels(&others), "no flow wants it");
    assert!(tunnels(&[&others[..], &[("hops_quic_to_tcp", 1)]].concat()));
    assert!(tunnels(
        &[&others[..], &[("hops_quic_refused", 1)]].concat()
    ));
    assert!(
        !tunnels(&[("tunnel_peers_down", 1)]),
        "they are being dialed"
    );
    assert!(
        !tunnels(&[("tunnels_lost", 2), ("hops_quic_to_tcp", 1)]),
        "they are back"
    );
    let text = shown(&json!({"interfaces": [], "transparent": false}));
    assert!(text.starts_with("posthaste 1.0 is ready"), "{text}");
}

/// Also after the tunnel is back.
#[test]
fn flows_without_their_tunnel_are_shown() {
    let counters = json!({"counters": {
        "relays_opened": 290, "hops_quic_to_tcp": 289, "hops_quic_refused": 1,
    }});
    let text = shown(&counters);
    let sentence = "For want of a tunnel 289 took TCP without encryption and 1 were refused.";
    assert!(text.contains(sentence), "{text}");
}

// promise: W8
#[test]
fn ten_lines_at_most() {
    let mut worst = busy();
    let more = json!({
        "state": "draining", "deadline_seconds": 12.5,
        "interfaces": (0..40).map(|number| json!({
            "name": format!("eth{number}"), "index": number, "attached": number % 2 == 0, "hold": "tcx",
        })).collect::<Vec<_>>(),
        "ended": {"internal": 3}, "redirect": {"events_lost": 4},
        "reloads": {"succeeded": 0, "failed": 1, "last_success_unix_seconds": 0.0,
            "last_error": "node.toml:1:1: x: unknown key\nnode.toml:2:1: y: unknown key"},
        "guard": {"pid": null, "restarts": 9},
        "replaced": (0..3).map(|pid| json!({
            "pid": pid, "socket": "/run/x.sock", "relays": 5, "deadline_seconds": 60.0,
        })).collect::<Vec<_>>(),
        "controller": {
            "address": "192.0.2.1:4481", "connected": false, "trouble": "refused\nfor ever",
            "plan": null, "members": 0, "joins": 0, "plans": 0, "older": 0, "nacks": 0, "keys": 0,
            "clock": {"offset_us": 90_000_000, "error_us": 10},
            "destinations": {"known": 0, "sized": 0, "measured": 0, "refused": 0, "dropped": 0},
        },
    });
    worst
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let text = shown(&worst);
    assert_eq!(text.lines().count(), LINES_MAX, "{text}");
    assert!(
        text.contains("TROUBLE: 4 more: posthaste status --all"),
        "{text}"
    );
    assert!(text.contains("drains, and ends within 12s; up"), "{text}");
    assert!(text.contains("It replaced process 0, 1, 2"), "{text}");
}
