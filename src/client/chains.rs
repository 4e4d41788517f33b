// SPDX-License-Identifier: Apache-2.0
//! The `chains` verbs: other nodes, and the route of a flow.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::show::{self, Column};
use super::{present, query};
use crate::api::chains::{
    AppliedPlan, AppliedRoute, AppliedRule, Candidate, Chain, Chains, Explanation, Health,
    NextHops, Peer, Route, Size,
};
use crate::api::packets::{DataPath, Reason};
use crate::chains::{Question, explain as explain_config};
use crate::verb::AdminArgs;
use posthaste_config::{Config, transfer_size};

/// Default port of a destination.
const PORT: u16 = 443;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ChainsArgs {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    verb: Option<ChainsVerb>,
}

#[derive(Debug, Subcommand)]
enum ChainsVerb {
    /// Show the route of a flow, and the reason for it
    Explain(ExplainArgs),
}

#[derive(Args, Debug)]
struct ExplainArgs {
    /// ADDRESS[:PORT] of the server; the default port is 443
    #[arg(value_name = "DESTINATION", value_parser = destination)]
    destination: SocketAddr,
    /// Address of the client; without it, routes for some clients do not apply
    #[arg(long, value_name = "CLIENT")]
    from: Option<IpAddr>,
    /// Size of the transfer, for example 500000 or 64KiB (default: the size learned or configured
    /// for the destination)
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<u32>,
    /// Use this configuration file instead of the running node; the state of peers is then unknown
    #[arg(short, long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    #[command(flatten)]
    admin: AdminArgs,
}

fn destination(text: &str) -> Result<SocketAddr, String> {
    let whole = text.parse::<SocketAddr>().ok();
    let bare = || text.parse::<IpAddr>().ok().map(|ip| (ip, PORT).into());
    // No server can listen at port 0.
    let address = whole.or_else(bare).filter(|address| address.port() != 0);
    let form =
        "expected an address, with or without a port, such as 198.51.100.7:80 or [2001:db8::7]:80";
    address.ok_or_else(|| form.into())
}

fn size(text: &str) -> Result<u32, String> {
    // Read as a value of the configuration, so that both accept the same forms.
    let number = text.parse::<i64>().map(toml::Value::from);
    transfer_size(&number.unwrap_or_else(|_| text.into()))
}

/// The `chains` verbs.
pub(crate) fn chains(args: &ChainsArgs) -> anyhow::Result<()> {
    match &args.verb {
        None => {
            let chains: Chains = query(&args.admin.socket, "GET", "/chains")?;
            present(&args.admin, &chains, list)
        }
        Some(ChainsVerb::Explain(args)) => {
            let question = Question::new(args.destination, args.from);
            let question = question.map_err(anyhow::Error::msg)?.carrying(args.size);
            let explanation = match &args.config {
                Some(file) => explain_config(&Config::load(file)?, &question, None, None, None),
                None => query(&args.admin.socket, "GET", &target(args))?,
            };
            present(&args.admin, &explanation, explain)
        }
    }
}

fn target(args: &ExplainArgs) -> String {
    let from = args.from.map(|from| format!("&from={from}"));
    let size = args.size.map(|bytes| format!("&bytes={bytes}"));
    let destination = args.destination;
    format!(
        "/chains/explain?destination={destination}{}{}",
        from.unwrap_or_default(),
        size.unwrap_or_default()
    )
}

fn list(chains: &Chains) -> String {
    let id = chains
        .id
        .map_or_else(|| "without a number".into(), |id| format!("{id}"));
    let listeners = match chains.listeners.as_slice() {
        [] => "no explicit listener".to_owned(),
        some => format!("explicit listeners at {}", some.join(", ")),
    };
    let mut text = format!("node {id}, {listeners}\n\n");
    text += &show::table(PEERS, &chains.peers, 4);
    for peer in &chains.peers {
        if let Some(why) = &peer.failure {
            let _ = writeln!(text, "({}: the last hop that failed: {why})", peer.name);
        }
    }
    text.push('\n');
    text += &show::table(CHAINS, &chains.chains, 4);
    text.push('\n');
    text += &show::table(ROUTES, &chains.routes, 3);
    if chains.incomplete {
        text.push_str("(a worker was too busy to report what it observed)\n");
    }
    text
}

/// The peers. Many flows without a warm hop show a pool that is too small, many lost hops a peer or a
/// path that drops them.
const PEERS: &[Column<Peer>] = &[
    ("PEER", |peer| peer.name.clone()),
    ("ID", |peer| peer.id.to_string()),
    ("ADDRESS", |peer| peer.address.clone()),
    ("STATE", |peer| state(&peer.health)),
    ("RTT MS", |peer| round_trip(peer.rtt_us)),
    ("OVER", |peer| {
        let carrier = peer.carried_by.as_ref();
        carrier.map_or_else(
            || peer.transport.clone(),
            |carrier| carrier.transport.clone(),
        )
    }),
    ("LOSS", |peer| loss(peer.lost_in_million)),
    ("WARM HOPS", warm_hops),
    ("TAKEN", |peer| peer.taken.to_string()),
    ("IN VAIN", |peer| peer.missed.to_string()),
    ("LOST", |peer| peer.lost.to_string()),
];

fn warm_hops(peer: &Peer) -> String {
    match (peer.pool_max, peer.dialing) {
        (0, _) => "off".to_owned(),
        (_, 0) => peer.waiting.to_string(),
        (_, dialing) => format!("{} (+{dialing})", peer.waiting),
    }
}

fn round_trip(rtt_us: Option<u64>) -> String {
    let in_ms = |micros: u64| format!("{}.{}", micros / 1000, micros % 1000 / 100);
    rtt_us.map_or_else(|| "-".to_owned(), in_ms)
}

fn loss(lost_in_million: Option<u32>) -> String {
    let percent = |lost: u32| format!("{:.2}%", f64::from(lost) / 10_000.0);
    lost_in_million.map_or_else(|| "-".to_owned(), percent)
}

const CHAINS: &[Column<Chain>] = &[
    ("CHAIN", |chain| chain.name.clone()),
    ("STATE", |chain| state(&chain.health)),
    ("NODES", |chain| chain.nodes.join(" > ")),
];

const ROUTES: &[Column<Route>] = &[
    ("ROUTE", |route| route.number.to_string()),
    ("FOR", matched),
    ("WAYS", |route| in_order(&route.next_hops)),
];

/// What a route is for.
fn matched(route: &Route) -> String {
    let parts = [
        ("to", &route.destinations),
        ("from", &route.sources),
        ("ports", &route.ports),
    ];
    let parts = parts.into_iter().filter(|(_, list)| !list.is_empty());
    let parts = parts.map(|(word, list)| format!("{word} {}", list.join(", ")));
    let parts: Vec<_> = parts.collect();
    match parts.as_slice() {
        [] => "all".into(),
        parts => parts.join(" "),
    }
}

/// The candidates in a line, the one that is taken in brackets.
fn in_order(next_hops: &NextHops) -> String {
    let mut words: Vec<String> = Vec::new();
    for (index, candidate) in next_hops.candidates.iter().enumerate() {
        let name = candidate.chain.as_deref().unwrap_or("direct");
        words.push(if next_hops.taken == Some(index) {
            format!("[{name}]")
        } else {
            name.to_owned()
        });
    }
    if next_hops.taken.is_none() {
        words.push("[refuse]".into());
    }
    words.join(", ")
}

fn state(health: &Health) -> String {
    if health.known_to == 0 {
        return "unknown".into();
    }
    if health.down_at == 0 {
        return "up".into();
    }
    let span = show::span(health.down_for_ms);
    if health.usable {
        return format!("down for {} of the workers, for {span}", health.down_at);
    }
    format!("down for {span}")
}

fn explain(explanation: &Explanation) -> String {
    let from = explanation.client.as_deref().unwrap_or("any client");
    let mut text = format!("{} from {from}\n", explanation.destination);
    let mut line = |title: &str, words: &str| {
        let _ = writeln!(text, "  {title:<8} {words}");
    };
    line("rule", &rule(explanation.rule.as_ref()));
    if let Some(data_path) = &explanation.data_path {
        line("path", &path_words(data_path));
    }
    match explanation.routes.as_slice() {
        [] => line("route", "none applies"),
        [taken, others @ ..] => {
            line("route", &route(taken));
            for other in others {
                line(
                    "",
                    &format!("before {}, less narrow or later", route(other)),
                );
            }
        }
    }
    if let Some(known) = &explanation.size {
        line("size", &size_words(known));
    }
    if let Some(known) = &explanation.plan {
        line("plan", &plan_words(known));
    }
    let is_forwarded = is_forwarded(explanation);
    for (index, candidate) in explanation.next_hops.candidates.iter().enumerate() {
        let title = if index == 0 { "next hops" } else { "" };
        let taken = explanation.next_hops.taken == Some(index) && !is_forwarded;
        line(title, &way(candidate, taken, explanation.workers_queried));
    }
    if is_forwarded {
        line("", "none of them: the flow goes past the node  <- taken");
    } else if explanation.next_hops.taken.is_none() {
        let title = if explanation.next_hops.candidates.is_empty() {
            "next hops"
        } else {
            ""
        };
        line(title, "refuse the flow  <- taken");
    }
    line("access", &access(explanation));
    text
}

/// Whether the node leaves the flow to the host's forwarding.
fn is_forwarded(explanation: &Explanation) -> bool {
    let by_rule = explanation
        .rule
        .as_ref()
        .map_or("forward", |rule| rule.action.as_str());
    let path = explanation.data_path.as_ref();
    by_rule == "forward" || path.is_some_and(|path| path.path == "forward")
}

fn rule(rule: Option<&AppliedRule>) -> String {
    let Some(AppliedRule { name, action }) = rule else {
        return "none applies: the flow is forwarded past the node".into();
    };
    match action.as_str() {
        "relay" => format!("\"{name}\": the flow is relayed"),
        "forward" => format!("\"{name}\": the flow is forwarded past the node"),
        _ => format!("\"{name}\": the flow is rejected"),
    }
}

/// How segments would reach the server, and why.
fn path_words(chosen: &DataPath) -> String {
    let path = match chosen.path.as_str() {
        "socket" => "through two connections",
        "packet" => "packet by packet",
        _ => "forwarded past the node",
    };
    let time = chosen.time_ms.map_or_else(|| "-".to_owned(), show::span);
    let why = match chosen.reason {
        Reason::Rule => return path.into(),
        Reason::Unavailable => "the packet path is not loaded, see the log".into(),
        Reason::Blocked => "this host limits connections".into(),
        Reason::Bad => format!("the destination failed, and is not tried for {time}"),
        Reason::Unknown => "this flow shows what the destination grants".into(),
        Reason::Return => "no answer from there to this client was seen to come this way".into(),
        Reason::Bypassed => "relays of this client to it got no answer lately".into(),
        Reason::Long => format!("the destination sent a long answer, learned {time} ago"),
        Reason::Short => format!("no answer was long so far, learned {time} ago"),
        Reason::Known => format!("what the destination grants was learned {time} ago"),
    };
    format!("{path}: {why}")
}

fn route(route: &AppliedRoute) -> String {
    let parts = [
        ("destination in", &route.destination),
        ("client in", &route.source),
        ("port", &route.ports),
    ];
    let parts = parts.into_iter();
    let parts: Vec<_> = parts
        .filter_map(|(words, matched)| Some(format!("{words} {}", matched.as_ref()?)))
        .collect();
    let why = if parts.is_empty() {
        "for all".into()
    } else {
        parts.join(", ")
    };
    format!("{} ({why})", route.number)
}

/// The size and its source.
fn size_words(size: &Size) -> String {
    let mut text = format!("{} bytes, ", size.bytes);
    text += &match (size.source.as_str(), size.transfers, &size.prefix) {
        ("given", ..) => "as requested".to_owned(),
        ("learned", Some(transfers), Some(prefix)) => {
            format!("the median of {transfers} recent transfers to {prefix}")
        }
        ("default", ..) => "as nothing is known: controller.transfer_size".to_owned(),
        (source, ..) => format!("from {source}"),
    };
    if let (Some(class), Some(bytes)) = (size.class, size.class_bytes) {
        let _ = write!(
            text,
            "; size class {} of the plan, up to {bytes}",
            class + 1
        );
    }
    text
}

fn plan_words(plan: &AppliedPlan) -> String {
    let stamp = plan.epoch.zip(plan.version);
    let stamp = stamp.map(|(epoch, version)| format!("{epoch}.{version}, "));
    let age = plan
        .age_ms
        .map(|age_ms| format!("{} old, ", show::span(age_ms)));
    stamp.unwrap_or_default() + &age.unwrap_or_default() + &plan.why
}

fn way(candidate: &Candidate, taken: bool, requested: bool) -> String {
    let mut text = match (&candidate.chain, &candidate.peer) {
        (Some(chain), Some(_)) if candidate.nodes.len() > 1 => {
            format!("chain {chain} by way of {}", candidate.nodes.join(" > "))
        }
        (Some(chain), Some(peer)) => format!("chain {chain} by way of {peer}"),
        _ => "directly".to_owned(),
    };
    if candidate.peer.is_some() {
        text += match (requested, candidate.usable) {
            (false, _) => ", state unknown",
            (true, false) => ", down",
            (true, true) => ", usable",
        };
        if let Some(carrier) = &candidate.carried_by {
            let _ = write!(text, ", over {}", carrier.transport);
            if let Some(why) = &carrier.why {
                let _ = write!(text, " ({why})");
            }
        }
        if candidate.waiting > 0 {
            let _ = write!(text, ", {} warm hops wait", candidate.waiting);
        }
        text += &cold(candidate);
    }
    if taken {
        text += "  <- taken";
    }
    text
}

/// How a cold hop is opened, where that is notable.
fn cold(candidate: &Candidate) -> String {
    match (candidate.header_in.as_deref(), &candidate.no_option) {
        (Some("syn-option"), _) => ", cold hops by the option".into(),
        (_, Some(why)) => format!(", cold hops by Convert ({why})"),
        _ => String::new(),
    }
}

fn access(explanation: &Explanation) -> String {
    let access = &explanation.access;
    let destination = match &access.denied {
        Some(what) => format!(
            "denied at explicit listeners: the destination is {what}, and not in access.destinations"
        ),
        None => "the destination is allowed at explicit listeners".into(),
    };
    match access.client_admitted {
        Some(true) => destination + "; the client may connect without a key",
        Some(false) => destination + "; the client may not connect without a key",
        None => destination,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_with_port() {
        for (text, address) in [
            ("198.51.100.7", "198.51.100.7:443"),
            ("198.51.100.7:80", "198.51.100.7:80"),
            ("2001:db8::7", "[2001:db8::7]:443"),
            ("[2001:db8::7]:80", "[2001:db8::7]:80"),
        ] {
            assert_eq!(destination(text).unwrap().to_string(), address);
        }
        for text in ["example.org", "198.51.100.7:0", "198.51.100.7:x", ""] {
            assert!(destination(text).is_err(), "{text}");
        }
    }

    #[test]
    fn health_in_words() {
        let health = |usable, known_to, down_at| Health {
            usable,
            known_to,
            down_at,
            down_for_ms: 3000,
        };
        assert_eq!(state(&health(true, 0, 0)), "unknown");
        assert_eq!(state(&health(true, 2, 0)), "up");
        assert_eq!(
            state(&health(true, 2, 1)),
            "down for 1 of the workers, for 3.0s"
        );
        assert_eq!(state(&health(false, 2, 2)), "down for 3.0s");
    }
}
