// SPDX-License-Identifier: Apache-2.0
//! How the segments of a flow would reach its server: through sockets, packet by packet, or
//! forwarded past the node; and the reasons. The programs decide by the same facts in the same
//! order (`open_flow` in `packet_path.bpf.c`), and by the options of the client's SYN, which a
//! request does not have.

use std::time::Duration;

use posthaste_bpf::PacketKnowledge;
use posthaste_daemon::http::millis;
use posthaste_relay::policy::{Action, DataPath, Rule};

use super::Question;
use crate::api::packets::{DataPath as Answer, Reason};
use posthaste_config::Config;

/// What the node knows for the packet path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets {
    /// About the flow; `None` while the packet path is not loaded.
    pub(crate) flow: Option<PacketKnowledge>,
    /// Whether the host blocks flows that must be observed.
    pub(crate) blocked: bool,
    /// Whether relays of the client to the destination got no answer lately.
    pub(crate) bypassed: bool,
}

/// The data path of the flow of a request; `None` if no rule relays it. `packets` is `None` when
/// no node was queried.
pub(crate) fn data_path(
    config: &Config,
    question: &Question,
    packets: Option<&Packets>,
) -> Option<Answer> {
    let policy = &config.policy;
    let rule = &policy.rules[policy.classify(&question.flow())?];
    if rule.action != Action::Relay {
        return None;
    }
    let has_client = question.client.is_some();
    let data_path = rule.effective_data_path(crate::intercept::is_chained(config));
    Some(match packets {
        Some(packets) if data_path == DataPath::Socket => {
            by_sockets(rule, packets, answer("socket", Reason::Rule))
        }
        None if data_path == DataPath::Socket => answer("socket", Reason::Rule),
        None => answer("packet", Reason::Rule),
        Some(packets) => choose(rule, has_client, packets),
    })
}

/// The answer for a flow that takes sockets, if this host lets it.
fn by_sockets(rule: &Rule, packets: &Packets, answers: Answer) -> Answer {
    if rule.observe && packets.blocked {
        return answer("forward", Reason::Blocked);
    }
    if rule.observe && packets.bypassed {
        return answer("forward", Reason::Bypassed);
    }
    answers
}

/// The choice for a rule that may take the packet path.
fn choose(rule: &Rule, has_client: bool, packets: &Packets) -> Answer {
    // What the packet path leaves goes on as if there were none.
    let left = |reason| match rule.data_path {
        DataPath::Packet => answer("forward", reason),
        DataPath::Socket | DataPath::Auto => by_sockets(rule, packets, answer("socket", reason)),
    };
    let Some(known) = packets.flow else {
        return left(Reason::Unavailable);
    };
    if let Some(left_for) = known.bad_for {
        return since(left(Reason::Bad), left_for);
    }
    let Some(age) = known.learned else {
        return answer("forward", Reason::Unknown);
    };
    if rule.observe && has_client && !known.passes {
        return answer("forward", Reason::Return);
    }
    let answers = match rule.data_path {
        _ if known.receives => left(Reason::Long),
        DataPath::Auto if known.is_long => left(Reason::Long),
        DataPath::Auto => answer("packet", Reason::Short),
        DataPath::Packet | DataPath::Socket => answer("packet", Reason::Known),
    };
    since(answers, age)
}

fn answer(path: &str, reason: Reason) -> Answer {
    Answer {
        path: path.into(),
        reason,
        time_ms: None,
    }
}

fn since(answer: Answer, time: Duration) -> Answer {
    Answer {
        time_ms: Some(millis(time)),
        ..answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_config::invariants::HOST;

    /// The answer for a flow from a client to a destination that are known as described.
    fn chosen(defaults: &str, packets: Option<Packets>) -> Option<(String, Reason)> {
        let text = format!("version = 1\n[defaults]\n{defaults}\n");
        let config = Config::parse("node.toml".as_ref(), &text, &HOST).unwrap();
        let client = "192.0.2.1".parse().unwrap();
        let question = Question::new("198.51.100.7:443".parse().unwrap(), Some(client)).unwrap();
        let answer = data_path(&config, &question, packets.as_ref());
        answer.map(|answer| (answer.path, answer.reason))
    }

    fn known() -> PacketKnowledge {
        PacketKnowledge {
            bad_for: None,
            learned: Some(Duration::from_secs(5)),
            is_long: false,
            receives: false,
            passes: true,
        }
    }

    fn assert_chosen(defaults: &str, flow: Option<PacketKnowledge>, path: &str, reason: Reason) {
        let packets = Packets {
            flow,
            blocked: false,
            bypassed: false,
        };
        let expected = Some((path.to_owned(), reason));
        assert_eq!(chosen(defaults, Some(packets)), expected, "{defaults}");
    }

    #[test]
    fn rules_without_a_choice() {
        let forwarded = chosen("[[rule]]\nname = \"a\"\naction = \"forward\"", None);
        assert_eq!(forwarded, None);
        let socket = Some(("socket".to_owned(), Reason::Rule));
        assert_eq!(chosen("data_path = \"socket\"", None), socket);
        assert_eq!(chosen("accept = \"late\"", None), socket);
        let packet = Some(("packet".to_owned(), Reason::Rule));
        assert_eq!(chosen("data_path = \"packet\"", None), packet);
        assert_eq!(chosen("", None), packet);
    }

    #[test]
    fn what_is_known_decides() {
        let (packet, auto) = ("data_path = \"packet\"", "data_path = \"auto\"");
        let is_long = PacketKnowledge {
            is_long: true,
            ..known()
        };
        let receives = PacketKnowledge {
            receives: true,
            ..known()
        };
        let bad = PacketKnowledge {
            bad_for: Some(Duration::from_secs(9)),
            ..known()
        };
        let unknown = PacketKnowledge::default();
        assert_chosen(packet, None, "forward", Reason::Unavailable);
        assert_chosen(auto, None, "socket", Reason::Unavailable);
        assert_chosen(packet, Some(unknown), "forward", Reason::Unknown);
        assert_chosen(auto, Some(unknown), "forward", Reason::Unknown);
        assert_chosen(packet, Some(bad), "forward", Reason::Bad);
        assert_chosen(auto, Some(bad), "socket", Reason::Bad);
        assert_chosen(packet, Some(is_long), "packet", Reason::Known);
        assert_chosen(auto, Some(is_long), "socket", Reason::Long);
        assert_chosen(packet, Some(receives), "forward", Reason::Long);
        assert_chosen(auto, Some(receives), "socket", Reason::Long);
        assert_chosen(auto, Some(known()), "packet", Reason::Short);
    }

    #[test]
    fn observing_rules_need_the_client() {
        let observe = "observe = true\ndata_path = \"packet\"";
        let unobserved = PacketKnowledge {
            passes: false,
            ..known()
        };
        assert_chosen(observe, Some(unobserved), "forward", Reason::Return);
        assert_chosen(observe, Some(known()), "packet", Reason::Known);
        let blocked = Packets {
            flow: Some(known()),
            blocked: true,
            bypassed: false,
        };
        let expected = Some(("packet".to_owned(), Reason::Known));
        assert_eq!(
            chosen(observe, Some(blocked)),
            expected,
            "the host lets its SYN pass, or not"
        );
        let expected = Some(("forward".to_owned(), Reason::Blocked));
        assert_eq!(chosen("data_path = \"socket\"", Some(blocked)), expected);
    }

    #[test]
    fn relays_without_an_answer_are_bypassed() {
        let packets = Packets {
            flow: Some(PacketKnowledge {
                is_long: true,
                ..known()
            }),
            blocked: false,
            bypassed: true,
        };
        for (defaults, path, reason) in [
            ("data_path = \"socket\"", "forward", Reason::Bypassed),
            ("", "forward", Reason::Bypassed),
            (
                "data_path = \"socket\"\nobserve = false",
                "socket",
                Reason::Rule,
            ),
            ("observe = false", "socket", Reason::Long),
        ] {
            let expected = Some((path.to_owned(), reason));
            assert_eq!(chosen(defaults, Some(packets)), expected, "{defaults}");
        }
    }
}
