// SPDX-License-Identifier: Apache-2.0
//! An independent client: libconvert, preloaded into curl. It is not part of this repository, so
//! the test runs only on request, with an environment variable that names it.

use std::io::{Read, Write};
use std::process::{Command, Output};
use std::thread;

use posthaste_lab::network::{Family, Network};

use crate::requests::{ExplicitNode, LISTENER_PORT, fixture};
use crate::support::{PORT, accept, ended, listen, until_ended};

use super::converter;

/// Names `libconvert_client.so`.
const LIBRARY: &str = "POSTHASTE_LIBCONVERT";

/// Fetches a page from the server with curl, through the node.
fn curl(network: &Network, library: &str, family: Family, port: u16) -> Output {
    let server = match family {
        Family::V4 => network.server_address(family).to_string(),
        Family::V6 => format!("[{}]", network.server_address(family)),
    };
    let mut curl: Command = network.client().command("curl").unwrap();
    curl.env("LD_PRELOAD", library)
        .env(
            "CONVERT_ADDR",
            network.node_address(0, Family::V4).to_string(),
        )
        .env("CONVERT_PORT", LISTENER_PORT.to_string())
        .args(["--silent", "--show-error", "--max-time", "20", "--globoff"])
        .arg(format!("http://{server}:{port}/"));
    curl.output().expect("curl can be run")
}

#[test]
#[ignore = "runs only with POSTHASTE_LIBCONVERT=/path/to/libconvert_client.so"]
fn libconvert_is_connected_and_refused() {
    let library = std::env::var(LIBRARY).unwrap_or_else(|_| panic!("{LIBRARY} is not set"));
    let network = fixture();
    for host in [network.client(), network.node(0)] {
        host.sysctl("net.ipv4.tcp_fastopen", "7").unwrap();
    }
    let explicit = ExplicitNode::start(&network, &converter(&network));
    let servers = listen(network.server(), PORT);
    for (count, family) in (1..).zip(Family::ALL) {
        let fetched = thread::scope(|scope| {
            let fetched = scope.spawn(|| curl(&network, &library, family, PORT));
            let (mut server, _) = accept(&servers);
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                server.read_exact(&mut byte).expect("a whole request");
                request.push(byte[0]);
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nyes\n";
            server.write_all(answer).expect("curl reads");
            drop(server);
            fetched.join().expect("no panic")
        });
        assert_eq!(fetched.stdout, b"yes\n", "{fetched:?}");
        until_ended(&explicit.node, "finished", count);
        // CURLE_COULDNT_CONNECT
        let refused = curl(&network, &library, family, PORT + 1);
        assert_eq!(refused.status.code(), Some(7), "{refused:?}");
        assert_eq!(ended(&explicit.node, "upstream_refused"), count);
    }
    assert_eq!(explicit.settle(), 4);
}
