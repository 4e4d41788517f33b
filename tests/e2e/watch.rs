// SPDX-License-Identifier: Apache-2.0
//! What an operator could see of a node from outside: the processes, sockets, rules, routes and
//! programs in its namespace, its descriptors, its counters and its log.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::net::if_::{if_nameindex, if_nametoindex};
use posthaste_lab::netns::Namespace;
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;

use crate::support::SOON;

/// The routing table and the routing protocol of what a node installs.
const TABLE: u32 = 20117;
const PROTOCOL: u32 = 180;

/// Where nodes keep the lock of their network namespace.
const CLAIMS: &str = "/run/posthaste";

/// Everything a node put on its host, in words; empty when nothing is there.
pub(crate) fn installed(host: &Namespace) -> Vec<String> {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        let rules = query(host, &format!("{family} rule show"));
        let ours = format!("lookup {TABLE}");
        found.extend(rules.into_iter().filter(|rule| rule.contains(&ours)));
        found.extend(query(
            host,
            &format!("{family} route show table all proto {PROTOCOL}"),
        ));
    }
    for interface in interfaces(host) {
        let programs = programs_at(host, &interface);
        found.extend((0..programs).map(|_| format!("a tcx program at {interface}")));
        found.extend(filters_at(host, &interface));
    }
    found
}

/// Asserts that no process, socket, rule, route or program remains on a node's host. The caller
/// has stopped everything that may be there.
pub(crate) fn assert_nothing_left(host: &Namespace) {
    let mut left = Vec::new();
    let clean = wait_until("host without traces of a node", SOON, || {
        left = installed(host);
        left.extend(processes(host));
        left.extend(
            sockets(host, "all")
                .into_iter()
                .filter(|socket| !is_scrape(socket)),
        );
        left.extend(claim(host).iter().map(|path| path.display().to_string()));
        left.is_empty()
    });
    assert!(clean.is_ok(), "left behind: {left:#?}");
}

/// Whether a socket is what reading the metrics of a node left: it ends in order, as any server's.
fn is_scrape(socket: &str) -> bool {
    socket.contains(" 127.0.0.1:") && socket.starts_with("TIME-WAIT")
}

fn query(host: &Namespace, words: &str) -> Vec<String> {
    let text = host.ip_output(words).unwrap();
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// The names of the interfaces of a host, but `lo`.
fn interfaces(host: &Namespace) -> Vec<String> {
    let names = host.run_in(|| {
        let all = if_nameindex().unwrap();
        let names = all.iter().map(|link| link.name().to_string_lossy().into());
        names.collect::<Vec<String>>()
    });
    names.into_iter().filter(|name| name != "lo").collect()
}

/// How many programs TCX runs on packets that enter at an interface. No tool in every distribution
/// reports that.
pub(crate) fn programs_at(host: &Namespace, interface: &str) -> u32 {
    /// `BPF_PROG_QUERY`, `BPF_TCX_INGRESS`
    const QUERY: libc::c_int = 16;
    const TCX_INGRESS: u32 = 46;
    host.run_in(|| {
        let index = if_nametoindex(interface).unwrap();
        // `union bpf_attr`: interface, attach type, two flags, address and length of a list.
        let mut query = [index, TCX_INGRESS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: the kernel reads and writes `query` and nothing else: the list it may fill has
        // no room.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                QUERY,
                query.as_mut_ptr(),
                size_of_val(&query),
            )
        };
        let error = std::io::Error::last_os_error();
        // Kernels before 6.6 do not know TCX.
        assert!(
            result == 0 || error.raw_os_error() == Some(libc::EINVAL),
            "BPF_PROG_QUERY: {error}"
        );
        query[6]
    })
}

/// The classic filters on what enters at an interface.
fn filters_at(host: &Namespace, interface: &str) -> Vec<String> {
    let mut tc = host.command("tc").unwrap();
    let output = tc
        .args(["filter", "show", "dev", interface, "ingress"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| format!("{interface}: {line}"))
        .collect()
}

/// The files of the node in a namespace: its lock, and the socket of its hand-over.
fn claim(host: &Namespace) -> Vec<PathBuf> {
    let name = |end| format!("netns-{}.{end}", inode(host));
    let paths = ["lock", "handover"].map(|end| Path::new(CLAIMS).join(name(end)));
    paths.into_iter().filter(|path| path.exists()).collect()
}

fn inode(host: &Namespace) -> u64 {
    host.run_in(|| fs::metadata("/proc/thread-self/ns/net").unwrap().ino())
}

/// The processes in a namespace: number and name. Threads of this test are not.
pub(crate) fn processes(host: &Namespace) -> Vec<String> {
    let wanted = inode(host);
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = pids.filter(|pid| {
        // A process that ends meanwhile is not inside.
        fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|ns| ns.ino() == wanted)
    });
    inside
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{pid} {}", name.trim())
        })
        .collect()
}

/// The process id of the first process of that name in a namespace.
pub(crate) fn process_named(host: &Namespace, name: &str) -> Option<u32> {
    let all = processes(host);
    let line = all
        .iter()
        .find_map(|process| process.strip_suffix(name).map(str::trim).map(str::to_owned))?;
    line.parse().ok()
}

/// The TCP sockets of a host in a state as `ss` calls it.
pub(crate) fn sockets(host: &Namespace, state: &str) -> Vec<String> {
    let mut ss = host.command("ss").unwrap();
    let output = ss.args(["-tanHe", "state", state]).output().unwrap();
    assert!(output.status.success(), "ss: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

/// Descriptors of a process, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) sockets: usize,
    pub(crate) pipes: usize,
    pub(crate) others: usize,
}

impl Descriptors {
    pub(crate) fn of(node: &Node) -> Self {
        let mut count = Self {
            sockets: 0,
            pipes: 0,
            others: 0,
        };
        let directory = format!("/proc/{}/fd", node.process().pid());
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let target = target.to_string_lossy();
            match target.split(':').next() {
                Some("socket") => count.sockets += 1,
                Some("pipe") => count.pipes += 1,
                _ => count.others += 1,
            }
        }
        count
    }

    pub(crate) fn count(&self) -> usize {
        self.sockets + self.pipes + self.others
    }
}

/// The empty pipes a worker keeps open for later.
const SPARE_PIPES: usize = 8;

/// A node's accounts at a quiet moment, to compare with those at a later one.
#[derive(Debug)]
pub(crate) struct Accounts {
    descriptors: Descriptors,
    outcomes: BTreeMap<String, u64>,
}

impl Accounts {
    pub(crate) fn of(node: &Node) -> Self {
        let outcomes = outcomes(node);
        // The answer to that query may still have a socket: the least of some looks counts.
        let looks = (0..20).map(|_| {
            thread::sleep(Duration::from_millis(2));
            Descriptors::of(node)
        });
        let descriptors = looks.min_by_key(|look| look.sockets);
        Self {
            descriptors: descriptors.unwrap(),
            outcomes,
        }
    }

    /// The same accounts of a node that may keep so many sockets more: warm hops, which come and go.
    pub(crate) fn with_spare_sockets(mut self, count: usize) -> Self {
        self.descriptors.sockets += count;
        self
    }

    /// Waits until every relay has ended and asserts that each was counted once, that nothing is
    /// left of them, and that `ended` is how they ended.
    pub(crate) fn settle(&self, node: &Node, ended: &[(&str, u64)]) {
        let since = self.settle_any(node);
        let expected: BTreeMap<_, _> = ended
            .iter()
            .map(|(outcome, count)| ((*outcome).to_owned(), *count))
            .collect();
        let unexpected = |line: &HashMap<_, _>| !expected.contains_key(&line["outcome"]);
        let others: Vec<_> = relay_lines(node).into_iter().filter(unexpected).collect();
        assert_eq!(since, expected, "relays by outcome; {others:#?}");
    }

    /// Like [`Accounts::settle`], and returns how the relays ended.
    pub(crate) fn settle_any(&self, node: &Node) -> BTreeMap<String, u64> {
        quiet(node);
        let status = node.status().unwrap();
        let after = outcomes(node);
        let total: u64 = after.values().sum();
        assert_eq!(
            total, status["counters"]["relays_opened"],
            "one outcome for every relay: {status:#}"
        );
        assert_eq!(status["counters"]["log_drops"], 0, "{status:#}");
        assert_eq!(status["counters"]["missed_relays"], 0, "{status:#}");
        self.same_descriptors(node);
        let since = after.into_iter().map(|(outcome, count)| {
            let before = self.outcomes.get(&outcome).copied().unwrap_or(0);
            (outcome, count - before)
        });
        since.filter(|(_, count)| *count > 0).collect()
    }

    fn same_descriptors(&self, node: &Node) {
        let workers = node.counter("workers").unwrap();
        let spare = usize::try_from(workers).unwrap() * SPARE_PIPES * 2;
        let before = &self.descriptors;
        let mut now = Descriptors::of(node);
        let same = wait_until("descriptors given back", SOON, || {
            // The last query may still have a socket.
            now = Descriptors::of(node);
            now.sockets <= before.sockets
                && now.others <= before.others
                && now.pipes <= before.pipes + spare
        });
        assert!(same.is_ok(), "before {before:?}, now {now:?}");
    }
}

/// Waits until a node has no relay, nor half of one.
pub(crate) fn quiet(node: &Node) {
    let mut counters = serde_json::Value::Null;
    let quiet = wait_until("end of all relays", SOON, || {
        counters = node.status().unwrap()["counters"].take();
        counters["relays"] == 0 && counters["half_open"] == 0
    });
    assert!(quiet.is_ok(), "{quiet:?}: {counters:#}");
}

/// Relays ended since the node's start, by outcome.
pub(crate) fn outcomes(node: &Node) -> BTreeMap<String, u64> {
    let status = node.status().unwrap();
    let ended = status["ended"].as_object().unwrap();
    let counts = ended
        .iter()
        .map(|(outcome, count)| (outcome.clone(), count.as_u64().unwrap()));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The fields of a line of the log.
pub(crate) fn fields(line: &str) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    let mut rest = line;
    while let Some((key, tail)) = rest.split_once('=') {
        let (value, tail) = match tail.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => tail.split_once(' ').unwrap_or((tail, "")),
        };
        fields.insert(key.trim().to_owned(), value.to_owned());
        rest = tail;
    }
    fields
}

/// The log's lines of ended relays.
pub(crate) fn relay_lines(node: &Node) -> Vec<HashMap<String, String>> {
    let lines = node.log();
    let lines = lines.iter().map(|line| fields(line));
    lines
        .filter(|fields| fields.get("msg").is_some_and(|msg| msg == "relay"))
        .collect()
}

/// Waits for a line of the log with all of `words`.
pub(crate) fn wait_for_line(node: &Node, words: &[&str]) -> String {
    let mut found = None;
    let there = wait_until("such a line", SOON, || {
        found = node
            .log()
            .into_iter()
            .find(|line| words.iter().all(|word| line.contains(word)));
        found.is_some()
    });
    assert!(there.is_ok(), "{words:?} in {:#?}", node.log());
    found.unwrap_or_default()
}

/// Status code and body of an HTTP answer from a port of a host's own loopback address.
pub(crate) fn http_get(host: &Namespace, port: u16, target: &str) -> (u16, String) {
    host.run_in(|| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        write!(stream, "GET {target} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, body.to_owned())
    })
}
