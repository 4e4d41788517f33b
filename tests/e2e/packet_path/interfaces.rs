// SPDX-License-Identifier: Apache-2.0
//! Interfaces of clients that are made anew while their flows are open.

use crate::operations::interfaces::{attached, plug_in, servers};

use super::*;

/// Both ends of the cable have other link addresses then.
// promise: PK6
#[test]
fn flows_continue_at_a_new_interface() {
    let network = line();
    let (node, listener) = ready(&network);
    let host = network.node(0);
    let client = Namespace::new().unwrap();
    plug_in(&client, host, "late0");
    until("attachment", || attached(&node, "late0"));
    let mut pairs = servers(&network).map(|server| {
        let taken = redirect(&node, "packet_taken");
        let mut pair = None;
        until("a flow is carried", || {
            pair = Some(Pair::of(dial(&client, server), &listener));
            redirect(&node, "packet_taken") > taken
        });
        pair.expect("there is one")
    });
    pairs.iter_mut().for_each(Pair::check);
    host.ip("link del late0").unwrap();
    plug_in(&client, host, "late0");
    pairs.iter_mut().for_each(Pair::check);
    for pair in pairs {
        pair.close_client_first();
    }
}
