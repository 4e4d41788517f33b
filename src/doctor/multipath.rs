// SPDX-License-Identifier: Apache-2.0
//! What rules and listeners with Multipath TCP need of this host.

use caps::Capability;
use posthaste_config::Config;
use posthaste_relay::policy::Rule;

use super::Verdict;
use super::checks::{or_ok, warn};
use super::host::Host;

pub(super) fn multipath(host: &Host, config: &Config) -> Vec<Verdict> {
    if !config.policy.wants_multipath() && config.multipath_listeners.is_empty() {
        return Vec::new();
    }
    if host.number("net/mptcp/enabled") != Some(1) {
        return warn(
            "this kernel has no Multipath TCP: its connections are left to their servers, and hops use TCP",
            "sysctl -w net.mptcp.enabled=1, or a kernel with CONFIG_MPTCP",
        );
    }
    let findings = ports(host, config)
        .into_iter()
        .chain(endpoints(host, config))
        .chain(congestion(config));
    or_ok(findings.collect(), "the kernel has Multipath TCP")
}

/// Further paths join only at a listener with the port of their destination.
fn ports(host: &Host, config: &Config) -> Vec<Verdict> {
    let converted = config.policy.rules.iter().any(Rule::converts_multipath);
    if !converted || host.has(Capability::CAP_NET_BIND_SERVICE) {
        return Vec::new();
    }
    warn(
        "without CAP_NET_BIND_SERVICE no further path joins a connection to a port below 1024",
        "grant CAP_NET_BIND_SERVICE, as the systemd unit does",
    )
}

/// Who opens a connection opens its further paths, from the addresses that the operator has named.
fn endpoints(host: &Host, config: &Config) -> Vec<Verdict> {
    if !config.policy.requests_multipath() || host.subflow_endpoints != Some(0) {
        return Vec::new();
    }
    warn(
        "this host has no endpoint for further paths: connections that it opens with Multipath TCP use one \
         path, unless the other end announces addresses",
        "ip mptcp endpoint add ADDRESS dev DEVICE subflow for each further uplink, and a routing rule for its \
         address",
    )
}

/// BBR without the queue discipline `fq` reached 6.3 to 8.0 of 9.56 Mbit/s over two paths, CUBIC 9.3.
fn congestion(config: &Config) -> Vec<Verdict> {
    let bbr = config.policy.rules.iter().find(|rule| {
        rule.converts_multipath() && rule.downstream.congestion.as_deref() == Some("bbr")
    });
    bbr.map_or_else(Vec::new, |rule| {
        warn(
            format!(
                "rule {}: BBR uses several paths less well than CUBIC",
                rule.name
            ),
            "downstream.congestion = \"cubic\" for this rule",
        )
    })
}
