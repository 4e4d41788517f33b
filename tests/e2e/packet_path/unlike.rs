// SPDX-License-Identifier: Apache-2.0
//! A service whose servers differ, as the same server with other settings: what it granted before is
//! promised to a client, and turns out wrong.

use super::*;
use crate::ends::carry;

/// Segments of the server that grants less, without headers: what an IPv6 path carries at the least.
const SMALL: u32 = 1220;

/// A network whose server is far enough for the node to hold what a client sends first.
fn far() -> (Network, Node, TcpListener) {
    let network = network([Link::Veth, Link::delay(Duration::from_millis(30))]);
    let (node, listener) = ready(&network);
    (network, node, listener)
}

fn set(network: &Network, name: &str, value: &str) {
    let key = format!("net.ipv4.tcp_{name}");
    network.server().sysctl(&key, value).expect("a setting");
}

/// Sends so much up, of which the node holds the beginning, and down.
fn exchange(network: &Network, family: Family, listener: &TcpListener, up: usize, down: usize) {
    let to = target(network, family, listener);
    let mut client = dial(network.client(), to).expect("the node answers");
    client.write_all(&[7; 5000]).expect("it is sent");
    let (mut server, _) = accept(listener);
    server.read_exact(&mut [0; 5000]).expect("it arrives");
    carry(&mut client, &mut server, up, 1);
    carry(&mut server, &mut client, down, 2);
    Pair { client, server }.close_client_first();
}

/// Makes the server grant small segments, and lose longer ones without a word, as behind a tunnel.
fn narrow_the_server(network: &Network) {
    let server = network.server();
    for family in ["-4", "-6"] {
        let mut ip = server.command("ip").expect("an open namespace");
        let shown = ip.args([family, "route", "show", "default"]).output();
        let shown = String::from_utf8(shown.expect("ip runs").stdout).expect("text");
        let route = shown.lines().next().expect("a default route").trim();
        let changed = server.ip(&format!("route replace {route} advmss {SMALL}"));
        changed.expect("a route is changed");
    }
    let most = [SMALL + 40, SMALL + 60];
    let rules = format!(
        "meta protocol ip meta length > {} counter drop\nmeta protocol ip6 meta length > {} counter drop",
        most[0], most[1]
    );
    firewall(server, "tunnel", &[("input", &rules)]);
}

// promise: PK18
/// The client is told on its first flow, also of what the node held, and promised no more on its next.
#[test]
fn smaller_segments_than_promised() {
    let (network, node, listener) = far();
    narrow_the_server(&network);
    for family in Family::ALL {
        let [taken, narrowed] =
            ["packet_taken", "packet_narrowed"].map(|name| redirect(&node, name));
        exchange(&network, family, &listener, 20_000, 200_000);
        let told = redirect(&node, "packet_narrowed");
        assert!(told > narrowed, "{family}");
        exchange(&network, family, &listener, 20_000, 20_000);
        assert_eq!(redirect(&node, "packet_narrowed"), told, "{family}");
        assert_eq!(redirect(&node, "packet_taken"), taken + 2, "{family}");
    }
}

// promise: PK18
/// A receiver may drop segments without the timestamps that were agreed on (RFC 7323 section 3.2).
#[test]
fn promised_timestamps_are_added() {
    let (network, node, listener) = far();
    set(&network, "timestamps", "0");
    let port = listener.local_addr().expect("it is bound").port();
    let strict =
        format!("tcp sport {port} tcp flags & rst == 0 tcp option timestamp missing counter drop");
    firewall(network.client(), "strict", &[("input", &strict)]);
    for family in Family::ALL {
        let [taken, mismatches] =
            ["packet_taken", "packet_mismatches"].map(|name| redirect(&node, name));
        exchange(&network, family, &listener, 200_000, 300_000);
        assert_eq!(redirect(&node, "packet_taken"), taken + 1, "{family}");
        assert_eq!(
            redirect(&node, "packet_mismatches"),
            mismatches + 1,
            "{family}"
        );
    }
    let counted = firewall_text(network.client(), "strict");
    assert!(counted.contains("counter packets 0 "), "{counted}");
}

/// For how long the node leaves a service alone, in milliseconds.
fn left_for(network: &Network, node: &Node, family: Family, listener: &TcpListener) -> u64 {
    let to = target(network, family, listener);
    let answer = node.admin_json(&format!("chains explain {to}"));
    let answer = answer.expect("the node answers");
    assert_eq!(answer["data_path"]["reason"], "bad", "{answer}");
    answer["data_path"]["time_ms"].as_u64().expect("a time")
}

// promise: PK18
/// One server that grants less takes nothing from the clients of the others: they are not answered.
#[test]
fn unlike_servers_leave_the_packet_path() {
    let (network, node, listener) = far();
    for name in ["sack", "window_scaling", "timestamps"] {
        set(&network, name, "0");
    }
    for family in Family::ALL {
        exchange(&network, family, &listener, 1000, 1000);
        assert!(
            left_for(&network, &node, family, &listener) > 400_000,
            "{family}"
        );
    }
    for name in ["sack", "window_scaling", "timestamps"] {
        set(&network, name, "1");
    }
    let taken = redirect(&node, "packet_taken");
    for family in Family::ALL {
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        assert_options(&network, &pair, family);
        pair.close_client_first();
    }
    assert_eq!(redirect(&node, "packet_taken"), taken);
}

// promise: PK18
/// Nor is anything stripped where the node has learned from that server.
#[test]
fn plain_servers_are_not_learned() {
    let (network, node, first) = far();
    let listener = listen(network.server(), PORT + 1);
    for name in ["sack", "window_scaling"] {
        set(&network, name, "0");
    }
    learn(&network, &node, Family::V4, &listener);
    assert!(left_for(&network, &node, Family::V4, &listener) > 400_000);
    for name in ["sack", "window_scaling"] {
        set(&network, name, "1");
    }
    let pair = Pair::open(&network, Family::V4, &listener);
    assert_options(&network, &pair, Family::V4);
    drop(first);
}

/// All that both ends have in common is in use at the server.
fn assert_options(network: &Network, pair: &Pair, family: Family) {
    let peer = pair.client_address().to_string();
    let mut ss = network.server().command("ss").expect("a host");
    let listed = ss.args(["-tionO", "dst", &peer]).output().expect("ss runs");
    let sockets = String::from_utf8_lossy(&listed.stdout);
    for option in [" ts ", " sack ", " wscale:"] {
        assert!(sockets.contains(option), "{family}, {option}: {sockets}");
    }
}

// promise: PK18
/// In units of another server a small window would be none: the client would wait for ever.
#[test]
fn small_windows_stay_open() {
    let network = network([Link::Veth, Link::delay(Duration::from_millis(5))]);
    set(&network, "rmem", "4096 131072 1073725440");
    let (node, listener) = ready(&network);
    let to = target(&network, Family::V4, &listener);
    drop(Pair::open(&network, Family::V4, &listener));
    SockRef::from(&listener)
        .set_recv_buffer_size(2048)
        .expect("a small buffer");
    let taken = redirect(&node, "packet_taken");
    let mut client = dial(network.client(), to).expect("the node answers");
    let (mut server, _) = accept(&listener);
    carry(&mut client, &mut server, 60_000, 1);
    assert_eq!(redirect(&node, "packet_taken"), taken + 1);
    Pair { client, server }.close_client_first();
}
