// SPDX-License-Identifier: Apache-2.0
//! ICMP errors about flows of the packet path, and links with a smaller MTU.

use super::*;
use crate::ends::{carry, pattern};
use crate::support::{firewall, remove_firewall, talkative};

/// The MTU of a link that is narrower than those of the ends.
const NARROW: u32 = 1300;

/// Client, two routers and server, all of which report what they cannot deliver.
fn two_routers(far: Link) -> Network {
    let network = network([Link::Veth, Link::Veth, far]);
    talkative(network.nodes());
    network
}

fn narrow(host: &Namespace, interface: &str) {
    host.ip(&format!("link set {interface} mtu {NARROW}"))
        .expect("an interface has an MTU");
}

/// Bytes up and down of a connection. Behind an upload the packet path answers no more.
type Sizes = (usize, usize);
const BOTH_WAYS: [Sizes; 3] = [(14_000, 0), (0, 300_000), (200_000, 0)];
/// A veth device drops what it receives beyond its MTU, except where the sender left the cutting to
/// it: behind a narrow one the client must not send full segments.
const DOWN: [Sizes; 3] = [(1_000, 0), (0, 20_000), (0, 300_000)];

/// Uploads, also of data that is held, and downloads.
fn transfer(network: &Network, node: &Node, listener: &TcpListener, sizes: [Sizes; 3]) {
    for family in Family::ALL {
        let taken = redirect(node, "packet_taken");
        for (seed, (up, down)) in sizes.into_iter().enumerate() {
            let to = target(network, family, listener);
            let mut client = dial(network.client(), to).expect("it connects");
            let sent = pattern(up, seed);
            let mut server = std::thread::scope(|scope| {
                // Before the server has accepted: until then the node holds it.
                scope.spawn(|| client.write_all(&sent).expect("the bytes are sent"));
                let (mut server, _) = accept(listener);
                let mut received = vec![0; up];
                server.read_exact(&mut received).expect("the bytes arrive");
                assert!(received == sent, "{family}, {up} bytes");
                server
            });
            carry(&mut server, &mut client, down, seed);
            Pair { client, server }.close_client_first();
        }
        assert_eq!(redirect(node, "packet_taken"), taken + 3, "{family}");
    }
}

// promise: PK5
/// A router on the client's side reports packets of the server that are too big, in the node's
/// numbers.
#[test]
fn servers_learn_the_path_mtu_of_the_clients_side() {
    let network = two_routers(Link::Veth);
    let listener = listen(network.server(), PORT);
    let node = ready_on(&network, network.node(1), &listener);
    narrow(network.node(0), "c0");
    transfer(&network, &node, &listener, DOWN);
    assert!(redirect(&node, "packet_icmp_errors") >= 2);
}

/// The node itself reports them: in the server's numbers.
#[test]
fn clients_interface_is_narrow() {
    let network = two_routers(Link::Veth);
    let listener = listen(network.server(), PORT);
    let node = ready_on(&network, network.node(1), &listener);
    narrow(network.node(1), "c0");
    transfer(&network, &node, &listener, DOWN);
}

/// The node reports packets of the client, also those that it held.
#[test]
fn servers_interface_is_narrow() {
    let network = two_routers(Link::delay(Duration::from_millis(20)));
    let listener = listen(network.server(), PORT);
    let node = ready_on(&network, network.node(1), &listener);
    narrow(network.node(1), "s0");
    transfer(&network, &node, &listener, BOTH_WAYS);
    assert!(redirect(&node, "packet_held") > 0);
}

/// A router behind the node reports them.
#[test]
fn link_to_the_server_is_narrow() {
    let network = two_routers(Link::delay(Duration::from_millis(20)));
    let listener = listen(network.server(), PORT);
    let node = ready_on(&network, network.node(0), &listener);
    narrow(network.node(1), "s0");
    transfer(&network, &node, &listener, BOTH_WAYS);
    assert!(redirect(&node, "packet_held") > 0);
}

/// An established client ignores an ICMP error about its SYN. It gets the reset that it means, at
/// once, and later clients the error itself.
fn refuse_by_error(network: &Network, router: &Namespace) {
    let (node, _listener) = ready(network);
    for (number, kind) in ["port-unreachable", "admin-prohibited", "host-unreachable"]
        .into_iter()
        .enumerate()
    {
        for family in Family::ALL {
            let port = PORT + 1 + u16::try_from(number).expect("a small number");
            let served = listen(network.server(), port);
            learn(network, &node, family, &served);
            let refused = redirect(&node, "packet_refused");
            firewall(
                router,
                "refusing",
                &[(
                    "forward",
                    &format!("tcp dport {port} reject with icmpx {kind}"),
                )],
            );
            let to = target(network, family, &served);
            let mut client = dial(network.client(), to);
            let error = match &mut client {
                Ok(client) => uninterrupted(|| client.read(&mut [0])).map(drop),
                Err(_) => client.map(drop),
            };
            assert_eq!(
                error.expect_err("it is refused").raw_os_error(),
                Some(libc::ECONNRESET),
                "{kind} {family}"
            );
            assert_eq!(
                redirect(&node, "packet_refused"),
                refused + 1,
                "{kind} {family}"
            );
            remove_firewall(router, "refusing");
        }
    }
    assert_eq!(redirect(&node, "packet_given_up"), 0);
}

/// What the node's host rejects has not left: its client gets the error, as without a node.
// promise: PK3
#[test]
fn errors_of_the_node_reach_the_client() {
    let network = line();
    talkative(network.nodes());
    let (node, listener) = ready(&network);
    for kind in ["port-unreachable", "admin-prohibited", "host-unreachable"] {
        let rejects = format!("tcp dport {PORT} reject with icmpx {kind}");
        for family in Family::ALL {
            let taken = redirect(&node, "packet_taken");
            firewall(network.node(0), "refusing", &[("forward", &rejects)]);
            let dialled = dial(network.client(), target(&network, family, &listener));
            let error = dialled.expect_err("it is refused").raw_os_error();
            assert_ne!(error, Some(libc::ECONNRESET), "{kind} {family}");
            assert_ne!(error, Some(libc::ETIMEDOUT), "{kind} {family}");
            assert_eq!(redirect(&node, "packet_taken"), taken, "{kind} {family}");
            remove_firewall(network.node(0), "refusing");
        }
    }
}

// promise: PK3
/// The client is validated by then.
#[test]
fn errors_of_routers_reset_the_client() {
    let network = network([
        Link::Veth,
        Link::delay(Duration::from_millis(20)),
        Link::Veth,
    ]);
    talkative(network.nodes());
    refuse_by_error(&network, network.node(1));
}

// promise: PK5
/// Behind address translation errors quote the translated SYN; the client's interface sees the
/// original.
#[test]
fn errors_pass_address_translation() {
    let network = two_routers(Link::Veth);
    let masquerade = "table inet nat {
chain post { type nat hook postrouting priority 100
oifname \"s0\" masquerade
}
}
";
    firewall_script(network.node(0), masquerade);
    refuse_by_error(&network, network.node(1));
}
