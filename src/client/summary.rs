// SPDX-License-Identifier: Apache-2.0
//! The `status` verb in a few sentences: problems, what the node does, and its savings.

use crate::api::control_client::Follow;
use crate::api::saved::Saved;
use crate::api::{Replaced, State, Status};

use super::show::{bytes, millis, own_clock, span};

/// Bound on the lines of problems; `--all` shows all.
const TROUBLES_MAX: usize = 3;
/// Interfaces listed by name; more are counted.
const INTERFACES_MAX: usize = 6;

/// At most ten lines: one for each sentence below, and one more than [`TROUBLES_MAX`] for problems.
pub(super) fn status(status: &Status) -> String {
    let mut lines = troubles(status);
    if lines.len() > TROUBLES_MAX {
        let left_out = lines.len() - TROUBLES_MAX;
        lines.truncate(TROUBLES_MAX);
        lines.push(format!("TROUBLE: {left_out} more: posthaste status --all"));
    }
    lines.push(state(status));
    lines.push(relays(status));
    lines.extend(saved(&status.saved));
    lines.extend(status.controller.as_ref().map(plan));
    lines.extend(replaced(&status.replaced));
    lines.join("\n") + "\n"
}

/// Problems for the operator, the worst first.
fn troubles(status: &Status) -> Vec<String> {
    let mut troubles = Vec::new();
    // A node that only takes requests needs none.
    if status.interfaces.is_empty() && status.transparent {
        troubles.push("no interface is there: nothing is intercepted.".to_owned());
    }
    let absent = status.interfaces.iter().filter(|there| !there.attached);
    let absent: Vec<&str> = absent.map(|interface| interface.name.as_str()).collect();
    if !absent.is_empty() {
        troubles.push(format!("nothing is intercepted on {}.", absent.join(", ")));
    }
    if status.blocked {
        troubles.push(
            "this host's firewall stands in the way of relays, and connections are forwarded: \
             run posthaste doctor for fixes."
                .into(),
        );
    }
    if let Some(error) = &status.packet_path_trouble {
        troubles.push(format!(
            "there is no packet path, so data_path = \"auto\" means sockets: {error} \
             (posthaste doctor has the fix)"
        ));
    }
    if let Some(error) = &status.reloads.last_error {
        troubles.push(format!(
            "the last reload FAILED, and the former configuration holds: {error}"
        ));
    }
    if status.guard.pid.is_none() {
        troubles.push("there is no guard: nothing cleans up if the node dies.".into());
    }
    if let Some(internal) = status.ended.get("internal").filter(|count| **count > 0) {
        troubles.push(format!(
            "{internal} connections ended for want of descriptors or memory."
        ));
    }
    let lost = status.redirect.get("events_lost").copied().unwrap_or(0);
    if lost > 0 {
        troubles.push(format!(
            "{lost} SYNs came faster than the workers took them."
        ));
    }
    troubles.extend(trouble_of_tunnels(status));
    troubles.extend(status.controller.iter().flat_map(troubles_of_controller));
    let troubles = troubles.into_iter();
    // Errors may have several lines.
    let line = |trouble: String| trouble.lines().collect::<Vec<_>>().join("; ");
    troubles
        .map(|trouble| format!("TROUBLE: {}", line(trouble)))
        .collect()
}

/// Flows would take TCP unnoticed, which is not encrypted. A peer that only dials has no tunnel from here, and
/// gets no flow.
fn trouble_of_tunnels(status: &Status) -> Option<String> {
    let count = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let have_been_tried = count("tunnels_failed") + count("tunnels_lost") > 0;
    let has_none = count("tunnels_up") == 0 && have_been_tried;
    let are_wanted = count("hops_quic_to_tcp") + count("hops_quic_refused") > 0;
    (count("tunnel_peers_down") > 0 && (has_none || are_wanted)).then(|| {
        "no tunnel to a peer is up, and flows to it take TCP without encryption, or are refused with \
         transport = \"quic-only\": UDP must pass to and from its address (posthaste chains has the peer)."
            .into()
    })
}

fn troubles_of_controller(follow: &Follow) -> Vec<String> {
    let mut troubles = Vec::new();
    if let (false, Some(trouble)) = (follow.connected, &follow.trouble) {
        let address = &follow.address;
        troubles.push(format!(
            "the controller {address} is not connected: {trouble}"
        ));
    }
    if let Some(clock) = follow.clock.filter(|clock| clock.is_wrong()) {
        troubles.push(format!("this host's clock is {}", own_clock(clock)));
    }
    if follow.plan.as_ref().is_some_and(|plan| !plan.in_force) {
        troubles.push("the plan is too old to be in force: flows go without.".into());
    }
    troubles
}

fn state(status: &Status) -> String {
    let does = match (status.state, status.deadline_seconds) {
        (State::Ready, _) => format!("is ready and relays{}", places(status)),
        (State::Draining, left) => format!("drains, and ends {}", within(left)),
        (State::Replaced, left) => format!("was replaced, and ends {}", within(left)),
    };
    let (version, process) = (&status.version, status.pid);
    let up = span(millis(status.uptime_seconds));
    format!("posthaste {version} {does}; up {up}, process {process}.")
}

/// Where the node intercepts.
fn places(status: &Status) -> String {
    let attached = status.interfaces.iter().filter(|there| there.attached);
    let names: Vec<&str> = attached.map(|interface| interface.name.as_str()).collect();
    match names.len() {
        0 => String::new(),
        1..=INTERFACES_MAX => format!(" on {}", names.join(", ")),
        count => format!(" on {count} interfaces"),
    }
}

fn within(left: Option<f64>) -> String {
    left.map_or_else(
        || "when its relays have".into(),
        |left| format!("within {}", span(millis(left))),
    )
}

fn relays(status: &Status) -> String {
    let counter = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let of_programs = |name: &str| status.redirect.get(name).copied().unwrap_or(0);
    let opened = counter("relays_opened");
    let packets = match of_programs("packet_opened") {
        0 => String::new(),
        carried => format!(
            "It has answered {} on the packet path. ",
            connections(carried)
        ),
    };
    if opened == 0 {
        return match of_programs("observed") {
            _ if !packets.is_empty() => packets.trim_end().into(),
            0 => "It has relayed nothing yet.".into(),
            watched => format!(
                "It has relayed nothing yet, and watched {} that it forwarded.",
                connections(watched)
            ),
        };
    }
    format!(
        "{packets}It has relayed {}, of which {} open now: {} to clients, {} to servers.{}",
        connections(opened),
        are(counter("relays")),
        bytes(counter("bytes_down")),
        bytes(counter("bytes_up")),
        without_tunnel(counter("hops_quic_to_tcp"), counter("hops_quic_refused"))
    )
}

/// Flows that had not the tunnel which the configuration has for them: also after it is back.
fn without_tunnel(by_tcp: u64, refused: u64) -> String {
    let took = (by_tcp > 0).then(|| format!("{by_tcp} took TCP without encryption"));
    let refused = (refused > 0).then(|| format!("{refused} were refused"));
    let parts: Vec<_> = took.into_iter().chain(refused).collect();
    if parts.is_empty() {
        return String::new();
    }
    format!(" For want of a tunnel {}.", parts.join(" and "))
}

/// The savings, and the loss of slower relays.
pub(super) fn saved(saved: &Saved) -> Vec<String> {
    let mut lines = Vec::new();
    if saved.relays > 0 {
        let each = saved.first_byte_seconds / saved.relays as f64;
        lines.push(format!(
            "It saved {} at least {} to the first byte ({} each) and {} to the end.",
            connections(saved.relays),
            short(saved.first_byte_seconds),
            short(each),
            short(saved.end_seconds)
        ));
    }
    if saved.slower > 0 {
        lines.push(format!(
            "It made {} slower, by {} in all.",
            connections(saved.slower),
            short(saved.slower_seconds)
        ));
    }
    lines
}

fn plan(follow: &Follow) -> String {
    let address = &follow.address;
    match &follow.plan {
        Some(plan) if plan.in_force => format!(
            "It follows the controller {address}: {} chains to {} nodes.",
            plan.chains, plan.egresses
        ),
        _ => format!("It follows the controller {address}, and goes by no plan now."),
    }
}

fn replaced(nodes: &[Replaced]) -> Option<String> {
    let processes: Vec<String> = nodes.iter().map(|node| node.pid.to_string()).collect();
    (!processes.is_empty()).then(|| {
        let relays: u64 = nodes.iter().filter_map(|node| node.relays).sum();
        let processes = processes.join(", ");
        format!(
            "It replaced process {processes}, which still carries {}.",
            connections(relays)
        )
    })
}

fn connections(count: u64) -> String {
    match count {
        1 => "1 connection".into(),
        _ => format!("{count} connections"),
    }
}

fn are(count: u64) -> String {
    match count {
        1 => "1 is".into(),
        _ => format!("{count} are"),
    }
}

/// A time of any length, in a few characters.
pub(super) fn short(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1e3);
    }
    span(millis(seconds))
}

#[cfg(test)]
mod tests;
