// SPDX-License-Identifier: Apache-2.0
//! Clients with a privileged source port, which some servers require: rsh, NFS.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::scratch::Scratch;

use crate::support::{
    MODES_BY_PORT, Pair, binary, counter, dial_from, each_mode, line, listen, start_relaying,
    target,
};

/// Connects from ports of which only the last is unprivileged; all servers see them.
fn connect_from_low_ports(network: &Network, port: u16) {
    let listener = listen(network.server(), port);
    for family in Family::ALL {
        for port in [20, 513, 1023, 1024] {
            let from = SocketAddr::new(network.client_address(family), port);
            let to = target(network, family, &listener);
            let mut pair = Pair::of(dial_from(network.client(), from, to), &listener);
            assert_eq!(pair.seen_by_server(), from);
            pair.check();
            pair.close_client_first();
        }
    }
}

// promise: T18
#[test]
fn privileged_ports_in_every_mode() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (relays, (mode, port)) in [8, 16, 24].into_iter().zip(MODES_BY_PORT) {
        connect_from_low_ports(&network, port);
        assert_eq!(counter(&node, "relays_opened"), relays, "{mode}");
    }
    assert_eq!(counter(&node, "ports_forbidden"), 0);
}

/// The program without the capability that privileged ports take.
fn binary_without(directory: &Scratch) -> PathBuf {
    let script = directory.path().join("posthaste");
    let program = binary();
    let text = format!(
        "#!/bin/sh\nexec setpriv --bounding-set=-net_bind_service {} \"$@\"\n",
        program.display()
    );
    std::fs::write(&script, text).expect("a script can be written");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, executable).expect("and made executable");
    script
}

// promise: T18
#[test]
fn privileged_ports_without_capability() {
    let directory = Scratch::new().expect("a directory for the script");
    let network = line();
    let builder = Node::builder(network.node(0), binary_without(&directory));
    let builder = builder.relaying().config(&each_mode());
    let node = builder.start().expect("the node becomes ready");
    for (turn, (mode, port)) in (1..).zip(MODES_BY_PORT) {
        connect_from_low_ports(&network, port);
        assert_eq!(counter(&node, "relays_opened"), 2 * turn, "{mode}");
        assert_eq!(counter(&node, "ports_forbidden"), 6 * turn);
        let message = |line: &&String| line.contains("CAP_NET_BIND_SERVICE is missing");
        assert_eq!(node.log().iter().filter(message).count(), 1, "{mode}");
    }
}
