// SPDX-License-Identifier: Apache-2.0
//! Web servers and browsers: nginx with curl and wrk.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use posthaste_lab::network::{Family, Network};
use posthaste_lab::nginx::{LOG_VISITORS, Nginx};
use posthaste_lab::scratch::Scratch;

use super::{program, run, settle, succeed};
use crate::payload::send;
use crate::run::{led, start_open};
use crate::support::{counter, line, start_relaying, until_counter};
use crate::watch::Accounts;

/// Objects to fetch, and the bytes of each.
const OBJECTS: [(&str, u64); 4] = [
    ("empty", 0),
    ("small", 1_000),
    ("middle", 100_000),
    ("big", 5_000_000),
];

/// An nginx on ports 80 and, with TLS and HTTP/2, 443 of a network's server.
fn start_server(network: &Network) -> Nginx {
    let files = Scratch::new().unwrap();
    let root = files.path();
    for (seed, (name, bytes)) in (0..).zip(OBJECTS) {
        let mut object = fs::File::create(root.join(name)).unwrap();
        send(&mut object, seed, bytes).unwrap();
    }
    make_certificate(network, root);
    let http = format!(
        "{LOG_VISITORS}
    keepalive_requests 1000000;
    ssl_certificate {root}/certificate.pem;
    ssl_certificate_key {root}/key.pem;
    server {{
        listen 0.0.0.0:80;
        listen [::]:80 ipv6only=on;
        listen 0.0.0.0:443 ssl http2;
        listen [::]:443 ssl http2 ipv6only=on;
        root {root};
    }}",
        root = root.display()
    );
    Nginx::start(network.server(), files, &http).unwrap()
}

/// A certificate for the server's addresses, signed by itself.
fn make_certificate(network: &Network, root: &Path) {
    let [v4, v6] = Family::ALL.map(|family| network.server_address(family));
    let mut openssl = std::process::Command::new(program("openssl"));
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
        .args([
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-subj",
            "/CN=server",
        ])
        .args(["-addext", &format!("subjectAltName=IP:{v4},IP:{v6}")])
        .arg("-keyout")
        .arg(root.join("key.pem"))
        .arg("-out")
        .arg(root.join("certificate.pem"));
    succeed(&mut openssl);
}

/// A host as URLs write it.
fn in_url(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

// promise: T8
#[test]
fn curl_fetches_from_nginx() {
    let network = line();
    let server = start_server(&network);
    let node = start_relaying(&network, "");
    let accounts = Accounts::of(&node);
    for family in Family::ALL {
        let host = in_url(network.server_address(family));
        let client = network.client_address(family).to_string();
        let before = counter(&node, "relays_opened");
        for (version, options) in [
            ("1.1", &["--http1.1"][..]),
            ("2", &["--http2"]),
            ("2", &["--http2", "--parallel"]),
        ] {
            let fetched = fetch_all(&network, &server, &format!("https://{host}"), options);
            assert_eq!(fetched, [version; OBJECTS.len()]);
        }
        let plain = fetch_all(&network, &server, &format!("http://{host}"), &["--http1.1"]);
        assert_eq!(plain, ["1.1"; OBJECTS.len()]);
        assert!(counter(&node, "relays_opened") >= before + 4);
        let visits = server.visitors().unwrap();
        let ours = visits.iter().filter(|visitor| **visitor == client);
        assert_eq!(ours.count(), 4 * OBJECTS.len(), "{visits:?}");
    }
    settle(&node, &accounts);
}

/// Fetches every object and compares it; the HTTP versions that were used.
fn fetch_all(network: &Network, server: &Nginx, testbed: &str, options: &[&str]) -> Vec<String> {
    let fetched = Scratch::new().unwrap();
    let root = server.files();
    let mut curl = network.client().command(program("curl")).unwrap();
    curl.args(["--silent", "--show-error", "--fail", "--noproxy", "*"])
        .args(["--max-time", "60", "--write-out", "%{http_version}\n"])
        .arg("--cacert")
        .arg(root.join("certificate.pem"))
        .args(options);
    for (name, _) in OBJECTS {
        curl.arg("--output")
            .arg(fetched.path().join(name))
            .arg(format!("{testbed}/{name}"));
    }
    let versions = run(&mut curl);
    for (name, _) in OBJECTS {
        let [there, here] = [root, fetched.path()].map(|at| fs::read(at.join(name)).unwrap());
        assert!(
            there == here,
            "{testbed}/{name} with {options:?} is not what the server has"
        );
    }
    versions.lines().map(str::to_owned).collect()
}

/// Connections that wrk keeps open.
const CONNECTIONS: u64 = 200;

// promise: T8
#[test]
fn wrk_two_hundred_connections() {
    let network = line();
    let server = start_server(&network);
    let node = start_relaying(&network, "");
    let accounts = Accounts::of(&node);
    for family in Family::ALL {
        let testbed = format!("http://{}/small", in_url(network.server_address(family)));
        let (before, visits) = (
            counter(&node, "relays_opened"),
            server.visitors().unwrap().len(),
        );
        let requests = wrk(&network, &testbed, &[]);
        let relays = counter(&node, "relays_opened") - before;
        assert!(
            (CONNECTIONS..=2 * CONNECTIONS).contains(&relays),
            "{relays} relays"
        );
        assert!(server.visitors().unwrap().len() as u64 >= visits as u64 + requests);
        settle(&node, &accounts);

        // A connection for every request; some are under way when wrk ends.
        let before = counter(&node, "relays_opened");
        let requests = wrk(&network, &testbed, &["--header", "Connection: close"]);
        until_counter(&node, "relays", 0);
        let relays = counter(&node, "relays_opened") - before;
        let expected = requests..=requests + 2 * CONNECTIONS;
        assert!(
            expected.contains(&relays),
            "{relays} relays for {requests} requests"
        );
        settle(&node, &accounts);
    }
}

/// Loads a site for a while; how many requests were answered.
fn wrk(network: &Network, testbed: &str, options: &[&str]) -> u64 {
    let mut wrk = network.client().command(program("wrk")).unwrap();
    wrk.args(["--threads", "2", "--duration", "3s", "--timeout", "60s"])
        .arg("--connections")
        .arg(CONNECTIONS.to_string());
    let message = run(wrk.args(options).arg(testbed));
    assert!(!message.contains("Socket errors"), "{message}");
    assert!(!message.contains("Non-2xx"), "{message}");
    let line = message
        .lines()
        .find_map(|line| line.split_once(" requests in "));
    let (requests, _) = line.unwrap_or_else(|| panic!("wrk printed {message}"));
    requests.trim().parse().unwrap()
}

/// Pictures on a page, over as many connections as a browser makes.
const PICTURES: usize = 40;

// promise: P1
#[test]
fn browser_through_run() {
    let names = ["chromium", "chromium-headless-shell"];
    let Some(browser) = names.into_iter().find_map(super::program_if_any) else {
        eprintln!("there is no chromium on this host: no page was loaded by one");
        return;
    };
    let network = line();
    let server = start_server(&network);
    let pictures: String = (0..PICTURES)
        .map(|number| format!("<img src='/small?{number}'>"))
        .collect();
    let count = "onload = () => document.body.append(`${document.images.length} pictures`)";
    let page = format!("<body><script>{count}</script>{pictures}</body>");
    fs::write(server.files().join("page.html"), page).unwrap();
    let (_node, via) = start_open(&network, Family::V4);
    for (scheme, family) in [("http", Family::V4), ("https", Family::V6)] {
        let before = server.visitors().unwrap().len();
        let mut command = network.client().command(&browser).unwrap();
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
        command.args(["--ignore-certificate-errors", "--disable-dev-shm-usage"]);
        command.arg(format!(
            "--user-data-dir={}",
            server.files().join(scheme).display()
        ));
        let address = in_url(network.server_address(family));
        command.arg(format!("{scheme}://{address}/page.html"));
        let loaded = run(&mut led(&network, via, &command));
        assert!(loaded.contains(&format!("{PICTURES} pictures")), "{loaded}");
        let visits = server.visitors().unwrap();
        assert!(visits.len() > before + PICTURES, "{scheme}: {visits:?}");
        let client = network.client_address(family).to_string();
        assert!(
            visits.iter().all(|visitor| *visitor != client),
            "{visits:?}"
        );
    }
}
