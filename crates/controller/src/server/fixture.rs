// SPDX-License-Identifier: Apache-2.0
//! A server with two nodes, paris and rome, for the tests of what is around it.

use std::sync::Arc;

use posthaste_control::message::{Link, LinkState};

use super::*;
use posthaste_daemon::log;

const CONFIG: &str = "version = 1
[server]
listen = [\"127.0.0.1:4490\"]
identity_file = \"/etc/posthaste/rome.key\"
[api]
operate_token_file = \"/etc/posthaste/rome.key\"
[[node]]
name = \"paris\"
id = 1
key = \"1111111111111111111111111111111111111111111111111111111111111111\"
[[node]]
name = \"rome\"
id = 2
key = \"2222222222222222222222222222222222222222222222222222222222222222\"
[[prefix]]
destinations = [\"198.51.100.0/24\"]
node = \"rome\"
";

/// Nobody has come. The name is that of its store.
pub(in super::super) fn server(name: &str) -> Arc<Server> {
    let host = &posthaste_config::invariants::HOST;
    let config = Controller::parse("controller.toml".as_ref(), CONFIG, host).unwrap();
    let path = std::env::temp_dir().join(format!("ph-{name}-{}.redb", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let (store, contents, _) = Store::open(&path).unwrap();
    // The file is open and needs no name any more.
    std::fs::remove_file(&path).unwrap();
    let (log, _) = log::start(false).unwrap();
    Arc::new(Server::new(config, store, contents, log))
}

/// One of the two comes, and reports its link to the other.
pub(in super::super) fn come(server: &Server, number: NodeNumber) -> Session {
    let key = meaning::keys(&server.lock().config)[&number];
    let hello = Hello {
        version: VERSION,
        number,
        software: "a test".into(),
        exchange: [0; 32],
        listeners: Vec::new(),
        reflectors: Vec::new(),
        holds: None,
    };
    let from = ([127, 0, 0, 1], 9).into();
    let session = server.enter(hello, key, from).unwrap();
    let state = LinkState::Up {
        rtt_us: 20_000,
        loss_ppm: None,
        rate: None,
    };
    report(server, &session, state);
    session
}

/// It reports its link to the other.
pub(in super::super) fn report(server: &Server, session: &Session, state: LinkState) {
    let to = 3 - session.number;
    let links = ToController::Links(vec![Link { to, state }]);
    server
        .received(session.number, session.ticket, (links, 1))
        .unwrap();
}
