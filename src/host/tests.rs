// SPDX-License-Identifier: Apache-2.0
//! Against the kernel, each test in a network namespace of its own. Need root.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};

use super::*;
use posthaste_relay::intercept::Closed;

const MARK: u32 = 0x2000_0000;

/// Runs `test` on a thread in a fresh network namespace with `lo` up.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let inside = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        ip("link set lo up");
        test();
    });
    if let Err(panic) = inside.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with these arguments and returns what it printed.
fn ip(arguments: &str) -> String {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "ip {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// One that relays.
fn config(transparent: Transparent) -> Config {
    Config {
        transparent,
        ..Config::default()
    }
}

// promise: H1
#[test]
fn install_and_remove() {
    in_namespace(|| {
        let before = [
            ip("rule"),
            ip("-6 rule"),
            ip("route show table all"),
            ip("-6 route show table all"),
        ];
        let wanted = Transparent::default();
        assert_eq!(install(&config(wanted.clone())).unwrap().done.len(), 4);
        for family in ["-4", "-6"] {
            let rules = ip(&format!("{family} rule"));
            assert!(
                rules.contains("fwmark 0x10000000/0x10000000 lookup 20117"),
                "{rules}"
            );
            let routes = ip(&format!("{family} route show table 20117"));
            assert!(
                routes.contains("local default dev lo proto 180"),
                "{routes}"
            );
        }
        let again = install(&config(wanted.clone())).unwrap();
        assert_eq!((again.done.len(), again.unchanged.len()), (0, 4));
        assert_eq!(remove(&wanted).unwrap().done.len(), 4);
        let after = [
            ip("rule"),
            ip("-6 rule"),
            ip("route show table all"),
            ip("-6 route show table all"),
        ];
        assert_eq!(before, after);
        assert_eq!(remove(&wanted).unwrap(), Report::default());
    });
}

#[test]
fn packet_path_needs_no_routing() {
    in_namespace(|| {
        let text = "version = 1\n[defaults]\ndata_path = \"packet\"\n";
        let capacity = posthaste_config::Capacity::of_host();
        let config = Config::parse("packet.toml".as_ref(), text, &capacity).unwrap();
        assert_eq!(install(&config).unwrap(), Report::default());
        assert!(!ip("rule").contains("fwmark"));
    });
}

#[test]
fn an_older_configuration_leaves_nothing() {
    in_namespace(|| {
        let old = Transparent {
            table: 77,
            mark: 4,
            ..Transparent::default()
        };
        install(&config(old)).unwrap();
        remove(&Transparent::default()).unwrap();
        assert!(!ip("rule").contains("0x4/0x4"));
        assert_eq!(ip("route show table all proto 180"), "");
    });
}

#[test]
fn foreign_rules_kept() {
    in_namespace(|| {
        ip("route add blackhole default table 20117");
        let error = install(&Config::default()).unwrap_err().to_string();
        assert!(
            error.contains("table 20117 has an IPv4 default route that is not ours"),
            "{error}"
        );
        assert!(table_in_use(20117).unwrap());
        assert!(!ip("rule").contains("20117"), "nothing half done");
        ip("route del blackhole default table 20117");
        assert!(!table_in_use(20117).unwrap());
        ip("rule add priority 180 fwmark 0x10000000/0x10000000 lookup 20117");
        install(&Config::default()).unwrap();
        remove(&Transparent::default()).unwrap();
        assert!(ip("rule").contains("fwmark 0x10000000"), "theirs stays");
    });
}

#[test]
fn host_without_ipv6() {
    in_namespace(|| {
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        let report = install(&Config::default()).unwrap();
        assert_eq!((report.done.len(), report.notes.len()), (2, 1));
        assert_eq!(remove(&Transparent::default()).unwrap().done.len(), 2);
    });
}

#[test]
fn loopback_down_is_named() {
    in_namespace(|| {
        ip("link set lo down");
        let error = install(&Config::default()).unwrap_err().to_string();
        assert!(error.contains("lo is down"), "{error}");
        assert!(!ip("rule").contains("20117"));
    });
}

/// A connection over `lo`: the marked client end, and its peer.
fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let address: SocketAddr = listener.local_addr().unwrap();
    let ours = TcpStream::connect(address).unwrap();
    setsockopt(&ours, sockopt::Mark, &MARK).unwrap();
    let (peer, _) = listener.accept().unwrap();
    (ours, peer)
}

/// Closes both ends with FINs, so that `first` is left in TIME_WAIT.
fn close(first: TcpStream, mut second: TcpStream) {
    first.shutdown(Shutdown::Write).unwrap();
    let mut nothing = Vec::new();
    second.read_to_end(&mut nothing).unwrap();
    drop(second);
    let mut first = first;
    first.read_to_end(&mut nothing).unwrap();
}

fn in_time_wait() -> usize {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let lines = tables.map(|path| fs::read_to_string(path).unwrap());
    // The fourth column is the state; 06 is TIME_WAIT.
    let states = lines
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(|line| line.split_whitespace().nth(3));
    states.filter(|state| *state == "06").count()
}

#[test]
fn leftover_sockets_destroyed() {
    in_namespace(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let (closing, peer) = connection(&listener);
            close(closing, peer);
            assert_eq!(in_time_wait(), 1, "{address}");
            let (_open, mut peer) = connection(&listener);
            assert_eq!(sockets::destroy(MARK).unwrap(), 2, "{address}");
            assert_eq!(in_time_wait(), 0, "{address}");
            let error = peer.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert_eq!(sockets::destroy(MARK).unwrap(), 0);
    });
}

// promise: F4
#[test]
fn time_wait_sockets_destroyed() {
    in_namespace(|| {
        let mut destroyer = Destroyer::open();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let (closing, peer) = connection(&listener);
            let mut closed = Closed {
                local: closing.local_addr().unwrap(),
                remote: closing.peer_addr().unwrap(),
                ifindex: 0,
                cookie: socket2::SockRef::from(&closing).cookie().unwrap(),
            };
            close(closing, peer);
            closed.cookie += 1;
            destroyer.destroy(&[closed]);
            assert_eq!(in_time_wait(), 1, "{address}: another's");
            closed.cookie -= 1;
            destroyer.destroy(&[closed, closed]);
            assert_eq!(in_time_wait(), 0, "{address}");
        }
    });
}

// promise: H1
#[test]
fn unmarked_sockets_survive() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut ours, mut peer) = connection(&listener);
        setsockopt(&ours, sockopt::Mark, &(MARK << 1)).unwrap();
        assert_eq!(sockets::destroy(MARK).unwrap(), 0);
        ours.write_all(b"x").unwrap();
        peer.read_exact(&mut [0]).unwrap();
    });
}

#[test]
fn sockets_beyond_a_batch() {
    in_namespace(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open: Vec<_> = (0..300).map(|_| connection(&listener)).collect();
        assert_eq!(sockets::destroy(MARK).unwrap(), open.len());
    });
}

#[test]
fn links_come_and_go() {
    in_namespace(|| {
        let watch = watch_links().unwrap();
        ip("link add ph0 type veth peer name ph1");
        ip("link add br0 type bridge");
        ip("link set ph1 master br0 up");
        let all = links().unwrap();
        let named = |name: &str| all.iter().find(|link| link.name == name).unwrap();
        assert_eq!(
            (named("ph0").framing, named("ph0").up),
            (Framing::Ethernet, false)
        );
        assert!(named("ph1").is_port() && named("ph1").up && !named("ph0").is_port());
        assert_eq!(named("lo").framing, Framing::Other(libc::ARPHRD_LOOPBACK));
        let gone = named("ph0").index;
        ip("link del ph0");
        let mut seen = Vec::new();
        while let Ok(events) = watch.read() {
            seen.extend(events);
        }
        assert!(seen.contains(&LinkEvent::Gone(gone)), "{seen:?}");
        assert!(
            seen.iter()
                .any(|event| matches!(event, LinkEvent::Present(link) if link.name == "ph0"))
        );
    });
}

#[test]
fn strict_reverse_path_reported() {
    in_namespace(|| {
        ip("link add ph0 type veth peer name ph1");
        let [own, other] = ["ph0", "ph1"].map(|name| {
            let all = links().unwrap();
            all.iter().find(|link| link.name == name).unwrap().index
        });
        assert!(!strict_sources().unwrap().contains(&own));
        let watch = watch_links().unwrap();
        let set = |name, value| {
            fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), value).unwrap();
        };
        set("ph0", "1");
        let strict = strict_sources().unwrap();
        assert!(strict.contains(&own) && !strict.contains(&other));
        set("all", "2");
        assert_eq!(strict_sources().unwrap(), [].into(), "loose is in force");
        assert!(watch.read().unwrap().contains(&LinkEvent::Settings));
    });
}

// promise: H1
#[test]
fn only_our_filter_is_removed() {
    in_namespace(|| {
        ip("link add ph0 type veth peer name ph1");
        let mut report = Report::default();
        filters::remove(&mut report).unwrap();
        assert_eq!(report, Report::default());
    });
}
