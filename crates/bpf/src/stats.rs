// SPDX-License-Identifier: Apache-2.0
//! The counters of the programs.

use crate::object::Map;

/// Above the largest CPU count that kernels support: the kernel writes one value per CPU.
const CPUS_MAX: usize = 8192;

/// Name and documentation of each counter, in the order of `enum stat`.
const STATS: [(&str, &str); 44] = [
    ("syns_redirected", "SYNs given to a listener."),
    (
        "half_open_full",
        "SYNs that found no room in the half-open budget.",
    ),
    (
        "events_lost",
        "SYNs and SYN-ACKs whose event found the worker's ring full.",
    ),
    ("cookies", "Client handshakes completed by SYN cookie."),
    ("time_wait_syns", "SYNs that met a TIME_WAIT socket."),
    ("icmp_errors", "ICMP errors handed to our sockets."),
    (
        "failed_destinations",
        "Early flows made strict by an earlier failure.",
    ),
    (
        "syn_options_refused",
        "SYNs with a chain header from addresses that may not send one.",
    ),
    (
        "syn_options_left_out",
        "Chain headers that the SYN they were for had no room for.",
    ),
    (
        "ports_forbidden",
        "SYNs forwarded for a source port that the node may not bind to.",
    ),
    (
        "observed",
        "SYNs forwarded to observe their handshakes before others are relayed.",
    ),
    (
        "learned",
        "Forwarded handshakes that were observed to the end.",
    ),
    (
        "translated",
        "SYNs forwarded because this host translates their destination.",
    ),
    (
        "no_gain",
        "SYNs forwarded because a relay would save less than observe.gain_min.",
    ),
    (
        "trials",
        "SYNs relayed for the first time after a handshake was observed.",
    ),
    (
        "bypassed",
        "SYNs forwarded because relays got no answer where forwarding did.",
    ),
    (
        "bypasses",
        "Times that forwarding was found to get an answer where a relay did not.",
    ),
    (
        "retranslated",
        "SYNs of relays dropped because this host gave them another source than it gave \
         the connection that was observed.",
    ),
    (
        "blocked",
        "SYNs forwarded because this host drops packets of relays.",
    ),
    ("packet_taken", "SYNs answered by the packet path."),
    (
        "packet_learning",
        "SYNs forwarded to learn what their destination grants.",
    ),
    (
        "packet_unfit",
        "SYNs with options or data that the packet path does not carry.",
    ),
    (
        "packet_local",
        "SYNs that this host does not forward, or on the addresses of one of its sockets.",
    ),
    (
        "packet_client",
        "SYNs forwarded since their client was not observed to reach their destination.",
    ),
    (
        "packet_blocked",
        "SYNs not taken because the firewall of this host limits connections.",
    ),
    (
        "packet_bad",
        "SYNs left to sockets because their destination failed on the packet path lately.",
    ),
    (
        "packet_full",
        "SYNs that found no room in the half-open budget of the packet path.",
    ),
    (
        "packet_busy",
        "SYNs forwarded since a living flow of the packet path has their addresses.",
    ),
    (
        "packet_held",
        "Segments held by the packet path until the server had answered.",
    ),
    (
        "packet_released",
        "Held segments sent on when the server had answered.",
    ),
    (
        "packet_refused",
        "Flows of the packet path that their server refused.",
    ),
    (
        "packet_given_up",
        "Flows of the packet path that no server answered.",
    ),
    (
        "packet_mismatches",
        "SYN-ACKs that did not grant what the packet path had promised.",
    ),
    (
        "packet_opened",
        "Flows of the packet path that reached their server.",
    ),
    (
        "packet_icmp_errors",
        "ICMP errors whose quoted sequence number the packet path translated.",
    ),
    (
        "packet_long",
        "SYNs to destinations whose answers are too long for the packet path.",
    ),
    (
        "packet_resent",
        "SYNs that the node sent again for clients that it had answered.",
    ),
    (
        "packet_unlearned",
        "SYNs forwarded since their destination is not known, and it was not its turn to be learned.",
    ),
    (
        "multipath_converted",
        "SYNs of Multipath TCP given to a listener.",
    ),
    (
        "multipath_passed",
        "SYNs of Multipath TCP left to their server.",
    ),
    (
        "multipath_joins",
        "SYNs of further paths given to the listener of their connection.",
    ),
    (
        "multipath_joins_held",
        "SYNs of further paths held, since their connection may be about to be accepted.",
    ),
    (
        "multipath_joins_unknown",
        "SYNs of further paths forwarded, since no connection of the node has their token.",
    ),
    (
        "multipath_joins_refused",
        "SYNs of further paths forwarded, since the node cannot listen on their port.",
    ),
];

/// All counters with their values since the programs were loaded.
pub(crate) fn read(map: &Map) -> Vec<(&'static str, &'static str, u64)> {
    let mut values = vec![0; CPUS_MAX * size_of::<u64>()];
    let mut total = |index: u32| {
        let found = map.look_up(&index.to_ne_bytes(), &mut values);
        let values = values.as_chunks().0.iter();
        let total = values.copied().map(u64::from_ne_bytes).sum();
        if found.is_ok() { total } else { 0 }
    };
    let each = (0..).zip(STATS);
    each.map(|(index, (name, help))| (name, help, total(index)))
        .collect()
}
