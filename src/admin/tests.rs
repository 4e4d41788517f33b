// SPDX-License-Identifier: Apache-2.0
//! The API over real sockets, in front of a node without workers.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;

use posthaste_bpf::{PacketFlow, PacketKnowledge};
use posthaste_relay::control::Handle;
use posthaste_relay::flow::Flow;

use super::*;
use crate::api::control_client::Follow;
use crate::api::observed::Observed;
use crate::api::{self, Interface, ReloadReport, Reloads};
use crate::chains::Followed;
use crate::host::{Claim, HostChange, LinkEvent};
use crate::upgrade::{Descriptor, Predecessors};
use posthaste_daemon::log::{self, Log};
use posthaste_measure::documents::Links;

/// A node that only records calls.
struct Fake {
    log: Log,
    drains: Mutex<Vec<Duration>>,
    reloads: AtomicUsize,
}

impl Operations for Fake {
    fn workers(&self) -> &[Handle] {
        &[]
    }
    fn log(&self) -> &Log {
        &self.log
    }
    fn config_file(&self) -> Option<String> {
        Some("/etc/posthaste/node.toml".into())
    }
    fn interfaces(&self) -> Vec<Interface> {
        vec![Interface::absent("c0")]
    }
    fn guard(&self) -> api::Guard {
        api::Guard::default()
    }
    fn look_after_guard(&self) {}
    fn place_flows(&self) {}
    fn release_packets(&self) {}

    fn redirect_stats(&self) -> Vec<(&'static str, &'static str, u64)> {
        vec![("events_lost", "Lost.", 4)]
    }
    fn configuration(&self) -> Config {
        let text = include_str!("../../fuzz/seeds/config/full.toml");
        let host = &posthaste_config::invariants::HOST;
        let mut config = Config::parse("node.toml".as_ref(), text, host).unwrap();
        config.transparent.enabled = true;
        config
    }
    fn links(&self) -> Links {
        let refused = [("auth".to_owned(), 5)].into();
        Links {
            refused,
            ..Links::default()
        }
    }
    fn follow(&self) -> Option<Follow> {
        None
    }
    fn followed(&self, _destination: IpAddr) -> Option<Followed> {
        None
    }
    fn forget_key(&self, name: &str) -> Option<bool> {
        (name != "nobody").then_some(name == "paris")
    }
    fn drain_timeout(&self) -> Duration {
        Duration::from_secs(30)
    }
    fn reload(&self) -> anyhow::Result<ReloadReport> {
        match self.reloads.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(ReloadReport::default()),
            _ => bail!("node.toml:3:1: node.wrkers: unknown key"),
        }
    }
    fn drain(&self, deadline: Duration) {
        self.drains.lock().unwrap().push(deadline);
    }
    fn on_links(&self, _: &[LinkEvent]) {}
    fn observed(&self, _: usize) -> anyhow::Result<Observed> {
        Ok(Observed::default())
    }
    fn packet_flows(&self, _: usize) -> anyhow::Result<Vec<PacketFlow>> {
        Ok(Vec::new())
    }
    fn packet_knowledge(&self, _: &Flow) -> anyhow::Result<Option<PacketKnowledge>> {
        Ok(None)
    }
    fn packet_path_trouble(&self) -> Option<String> {
        None
    }
    fn is_bypassed(&self, _: &Flow) -> anyhow::Result<bool> {
        Ok(false)
    }

    fn is_blocked(&self) -> bool {
        false
    }
    fn on_change(&self, _: HostChange) {}
    fn predecessors(&self) -> &Predecessors {
        static NONE: OnceLock<Predecessors> = OnceLock::new();
        NONE.get_or_init(Predecessors::default)
    }
    fn claim(&self) -> &Claim {
        unreachable!("nobody takes a fake node's place")
    }
    fn sockets(&self) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>> {
        Ok(Vec::new())
    }
    fn set_followed(&self, _followed: bool) -> anyhow::Result<()> {
        Ok(())
    }
    fn replace(&self, _deadline: Duration) {}
}

/// The API of a fake node, served until dropped.
struct Served {
    node: Arc<Fake>,
    control: Arc<Control>,
    socket: PathBuf,
    metrics: std::net::SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(name: &str) -> Self {
        let (log, _) = log::start(false).unwrap();
        let node = Arc::new(Fake {
            log,
            drains: Mutex::default(),
            reloads: AtomicUsize::new(0),
        });
        let control = Arc::new(Control::new(Arc::clone(&node) as Arc<dyn Operations>));
        let socket = std::env::temp_dir().join(format!("ph-{name}-{}.sock", std::process::id()));
        let admin = socket::AdminSocket::bind(&socket, None).unwrap();
        let tcp = socket::bind_metrics(([127, 0, 0, 1], 0).into()).unwrap();
        let metrics = tcp.local_addr().unwrap();
        let theirs = Arc::clone(&control);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let servers = start_servers(admin, Some(tcp), &theirs).unwrap();
                theirs.draining.notified().await;
                servers.close().await;
            });
        });
        Self {
            node,
            control,
            socket,
            metrics,
            thread: Some(thread),
        }
    }

    /// Status and body of the admin API's response.
    fn query(&self, request: &str) -> (u16, serde_json::Value) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        let (code, body) = exchange(&mut stream, request);
        (code, serde_json::from_str(&body).unwrap_or_default())
    }

    /// Status and body of the metrics address's response.
    fn observe(&self, target: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        exchange(&mut stream, &format!("GET {target}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.control.draining.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn exchange(stream: &mut (impl Read + Write), request: &str) -> (u16, String) {
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

#[test]
fn status_fields() {
    let served = Served::start("status");
    let (code, status) = served.query("GET /status");
    assert_eq!(
        (code, &status["state"], &status["redirect"]["events_lost"]),
        (200, &"ready".into(), &4.into())
    );
    assert_eq!(status["interfaces"][0]["attached"], false);
    assert_eq!(status["ended"]["finished"], 0);
}

#[test]
fn unknown_relays_refused() {
    let served = Served::start("relays");
    let (code, list) = served.query("GET /relays?limit=5");
    assert_eq!(
        (
            code,
            list["relays"].as_array().unwrap().len(),
            &list["incomplete"]
        ),
        (200, 0, &false.into())
    );
    for request in [
        "GET /relays/2a",
        "DELETE /relays/2a",
        "GET /relays/xyz",
        "DELETE /relays/ffffffffffffffff",
    ] {
        let (code, refusal) = served.query(request);
        assert_eq!(code, 404, "{request}");
        assert!(
            refusal["error"]
                .as_str()
                .unwrap()
                .contains("there is no relay"),
            "{refusal}"
        );
    }
    assert_eq!(served.query("GET /relays?limit=x").0, 400);
    assert_eq!(served.query("GET /nonsense").0, 404);
    assert_eq!(served.query("GET /reload").0, 405);
}

#[test]
fn chains_are_listed_and_explained() {
    let served = Served::start("chains");
    let (code, list) = served.query("GET /chains");
    assert_eq!((code, &list["id"]), (200, &7.into()));
    assert_eq!(list["peers"][0]["name"], "paris");
    assert_eq!(
        list["routes"][0]["next_hops"]["candidates"][0]["chain"],
        "south"
    );
    assert_eq!(list["incomplete"], false);
    let question = "destination=198.51.100.7:443&from=10.1.0.1";
    let (code, answer) = served.query(&format!("GET /chains/explain?{question}"));
    assert_eq!((code, &answer["routes"][0]["number"]), (200, &1.into()));
    let (code, answer) = served.query("GET /chains/explain?destination=[2001:db8::7]:443");
    assert_eq!((code, &answer["next_hops"]["taken"]), (200, &0.into()));
    let families = "destination=[2001:db8::7]:443&from=10.1.0.1";
    let (code, refusal) = served.query(&format!("GET /chains/explain?{families}"));
    assert_eq!(code, 400);
    assert!(refusal["error"].as_str().unwrap().contains("one family"));
    assert_eq!(served.query("GET /chains/explain").0, 400);
    assert_eq!(served.query("GET /chains/explain?destination=x:1").0, 400);
}

#[test]
fn reloads_counted() {
    let served = Served::start("reload");
    assert_eq!(served.query("POST /reload").0, 200);
    let (code, refusal) = served.query("POST /reload");
    assert_eq!(code, 422);
    assert!(refusal["error"].as_str().unwrap().contains("unknown key"));
    let reloads: Reloads =
        serde_json::from_value(served.query("GET /status").1["reloads"].clone()).unwrap();
    assert_eq!((reloads.succeeded, reloads.failed), (1, 1));
    assert!(reloads.last_error.unwrap().contains("unknown key"));
    let (_, metrics) = served.observe("/metrics");
    assert!(
        metrics.contains("posthaste_config_reloads_total{result=\"failure\"} 1\n"),
        "{metrics}"
    );
}

#[test]
fn health_and_readiness() {
    let served = Served::start("health");
    assert_eq!(served.observe("/healthz"), (200, "ok\n".into()));
    assert_eq!(
        served.observe("/readyz"),
        (503, "attached to no interface\n".into())
    );
    served.control.drain(None);
    assert_eq!(
        *served.node.drains.lock().unwrap(),
        [Duration::from_secs(30)]
    );
}

#[test]
fn drain_with_deadline() {
    let served = Served::start("drain");
    let (code, draining) = served.query("POST /drain?timeout_ms=1500");
    assert_eq!((code, &draining["relays"]), (202, &0.into()));
    assert_eq!(
        *served.node.drains.lock().unwrap(),
        [Duration::from_millis(1500)]
    );
    assert_eq!(served.control.state(), State::Draining);
}
