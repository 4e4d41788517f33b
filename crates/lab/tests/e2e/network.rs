// SPDX-License-Identifier: Apache-2.0
//! The lab's own networks, without any product: do links delay, limit and lose as configured?

use std::path::PathBuf;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::process::{Process, wait_until};
use posthaste_lab::transfer::{Request, Server, Timing, fetch};

const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(20);

fn fetch_over(network: &Network, family: Family, bytes: u64) -> Timing {
    let request = Request::new(network.server_address(family), 80, bytes);
    fetch(network.client(), &request).expect("the transfer works")
}

/// The shortest of many runs, in milliseconds: a busy machine makes some longer, none shorter.
/// Stops early once a run took no longer than `enough`.
fn shortest_ms(enough: f64, mut run: impl FnMut() -> Duration) -> f64 {
    let mut shortest = f64::INFINITY;
    for _ in 0..50 {
        shortest = shortest.min(run().as_secs_f64() * 1e3);
        if shortest <= enough {
            break;
        }
    }
    shortest
}

#[test]
fn round_trip_of_all_links() {
    let network = Network::line([Link::delay(15 * MS), Link::delay(10 * MS)])
        .build()
        .unwrap();
    let server = Server::start(network.server(), 80, network.congestion()).unwrap();
    for family in Family::ALL {
        let connect = shortest_ms(51.0, || fetch_over(&network, family, 100).connect);
        assert!((49.5..55.0).contains(&connect), "{family}: {connect} ms");
        assert_eq!(
            server.peers().last().unwrap().ip(),
            network.client_address(family)
        );
    }
}

#[test]
fn side_host_reached() {
    let half = Link::delay(10 * MS);
    let network = Network::line([half.clone(), half])
        .beside(0, Link::delay(5 * MS))
        .build()
        .unwrap();
    let _server = Server::start(network.aside(0), 80, network.congestion()).unwrap();
    for family in Family::ALL {
        for end in [network.client(), network.server()] {
            let request = Request::new(network.aside_address(0, family), 80, 100);
            let connect = shortest_ms(31.0, || fetch(end, &request).unwrap().connect);
            assert!((29.5..35.0).contains(&connect), "{family}: {connect} ms");
        }
    }
}

#[test]
fn limited_link_takes_time() {
    let link = Link::delay(MS).rate(8_000_000).queue(100_000);
    let network = Network::line([link]).build().unwrap();
    let _server = Server::start(network.server(), 80, network.congestion()).unwrap();
    // 500 KB in packets of 1500 bytes, 1448 of them content, at one byte per microsecond.
    let took = shortest_ms(550.0, || {
        let timing = fetch_over(&network, Family::V4, 500_000);
        timing.complete - timing.connect
    });
    assert!((510.0..600.0).contains(&took), "{took} ms");
}

#[test]
fn bytes_survive_loss() {
    let lossy = Link::delay(2 * MS).loss(0.03);
    let network = Network::line([lossy.clone(), lossy])
        .seed(7)
        .build()
        .unwrap();
    let _server = Server::start(network.server(), 80, network.congestion()).unwrap();
    for family in Family::ALL {
        fetch_over(&network, family, 300_000);
    }
    let stats = network.stats();
    assert!(
        stats.dropped > 0 && stats.packets > stats.dropped,
        "{stats:?}"
    );
}

#[test]
fn chosen_congestion_control() {
    for links in 1..3 {
        let network = Network::line(vec![Link::Veth; links])
            .congestion("reno")
            .build()
            .unwrap();
        for family in Family::ALL {
            let ends = [
                (network.client(), network.server_address(family)),
                (network.server(), network.client_address(family)),
            ];
            for (host, to) in ends {
                let route = host.ip_output(&format!("route get {to}")).unwrap();
                assert!(
                    route.contains("congctl reno"),
                    "{links} links, {family}: {route}"
                );
            }
        }
    }
}

#[test]
fn plain_links_need_no_emulation() {
    let network = Network::line([Link::Veth, Link::Veth, Link::Veth])
        .build()
        .unwrap();
    let _server = Server::start(network.server(), 80, network.congestion()).unwrap();
    for family in Family::ALL {
        fetch_over(&network, family, 5_000_000);
    }
    assert_eq!(network.stats().packets, 0);
}

#[test]
fn programs_see_own_network() {
    let network = Network::line([Link::Veth]).build().unwrap();
    let command = network.client().command("ip").unwrap();
    let mut process = Process::spawn("ip", with(command, &["-o", "link"])).unwrap();
    process.wait(SOON).unwrap();
    let names: Vec<String> = process.stdout().lines().map(|line| word(line, 1)).collect();
    assert!(
        names.iter().any(|name| name.starts_with("s0@")),
        "{names:?}"
    );
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn namespace_removal() {
    let namespace = Namespace::new().unwrap();
    let path = PathBuf::from("/run/netns").join(namespace.name());
    let sleeper = with(namespace.command("sleep").unwrap(), &["1000"]);
    let process = Process::spawn("sleep", sleeper).unwrap();
    assert!(path.exists());
    drop(process);
    drop(namespace);
    wait_until("end of the namespace", SOON, || !path.exists()).unwrap();
}

fn with(mut command: std::process::Command, arguments: &[&str]) -> std::process::Command {
    command.args(arguments);
    command
}

fn word(line: &str, index: usize) -> String {
    line.split_whitespace()
        .nth(index)
        .unwrap_or_default()
        .to_owned()
}
