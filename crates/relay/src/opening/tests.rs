// SPDX-License-Identifier: Apache-2.0
//! Openings as packet traces: what arrives and when, and what the node does about it.

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::Reply;

use crate::chain::Path;

use super::*;

const CONNECT: Duration = Duration::from_secs(10);
const EXPIRY: Duration = Duration::from_secs(5);

/// An opening, and a clock that starts at 100 s.
struct Trace(Opening);

fn ms(millis: u64) -> Duration {
    Duration::from_secs(100) + Duration::from_millis(millis)
}

fn path(node: u64) -> Path {
    Path::to(NodeId::new(node).unwrap())
}

fn syn_ack(number: u32) -> Frame {
    Frame::captured(number, 14, &[])
}

/// A flow whose upstream SYN was sent at 0 ms by the first of `next`.
fn begun(mode: AcceptMode, arrival: Arrival, next: &[NextHop]) -> Trace {
    let mut opening = Opening::new(mode, arrival, CONNECT, EXPIRY, ms(0));
    let hops = Hops::new(next.to_vec(), None);
    if arrival == Arrival::Plain {
        let begin = opening.on_begin(hops, Duration::MAX, ms(0));
        assert_eq!(list(begin), [Action::Try]);
    } else {
        opening = opening.with_hops(hops);
    }
    let mut trace = Trace(opening);
    trace.tries(next[0], 0);
    trace
}

fn direct(mode: AcceptMode) -> Trace {
    begun(mode, Arrival::Plain, &[NextHop::Direct])
}

fn list(actions: Actions) -> Vec<Action> {
    actions.into_iter().collect()
}

impl Trace {
    /// The best next hop is `hop`; how it is to be tried.
    fn tries(&mut self, hop: NextHop, at: u64) -> Try {
        let order = self.0.next_hop(|_| Trust::Full, ms(at)).unwrap();
        assert_eq!(order.hop, hop);
        order
    }

    /// The next hop is a node; the request goes to it as `sent`.
    fn opens(&mut self, node: u64, sent: Sent, at: u64) -> Vec<Action> {
        list(self.0.on_hop_opened(path(node), order(node), sent, ms(at)))
    }
}

fn order(node: u64) -> Try {
    Try {
        hop: hop(node),
        cold: false,
        without_syn_option: false,
        in_doubt: false,
    }
}

fn in_doubt(node: u64) -> Try {
    Try {
        in_doubt: true,
        ..order(node)
    }
}

fn hop(node: u64) -> NextHop {
    NextHop::Hop(path(node))
}

fn as_trial(mut opening: Opening) -> Opening {
    opening.is_trial = true;
    opening
}

#[test]
fn early_trace() {
    let mut trace = direct(AcceptMode::EARLY);
    assert_eq!(list(trace.0.on_syn_ack(syn_ack(1), ms(40))), []);
    let validated = list(trace.0.on_validated());
    assert_eq!(validated, [Action::Release, Action::LetIn(syn_ack(1))]);
    assert_eq!(list(trace.0.on_connected(ms(50))), [Action::Join]);
}

#[test]
fn strict_trace() {
    let mut trace = direct(AcceptMode::STRICT);
    let admitted = list(trace.0.on_syn_ack(syn_ack(1), ms(40)));
    assert_eq!(admitted, [Action::Admit]);
    assert_eq!(list(trace.0.on_syn_ack(syn_ack(2), ms(1040))), []);
    let validated = list(trace.0.on_validated());
    assert_eq!(validated, [Action::Release, Action::LetIn(syn_ack(2))]);
    assert_eq!(list(trace.0.on_connected(ms(1100))), [Action::Join]);
}

#[test]
fn strict_refusals_like_the_network() {
    let icmp = Icmp {
        kind: 3,
        code: 1,
        offender: None,
    };
    for (outcome, error, answer) in [
        (Outcome::UpstreamRefused, None, Action::ResetClient),
        (
            Outcome::UpstreamUnreachable,
            Some(icmp),
            Action::SendUnreachable(icmp),
        ),
        (Outcome::UpstreamUnreachable, None, Action::PassOn),
        (Outcome::Internal, None, Action::PassOn),
        (Outcome::ConnectTimeout, None, Action::PassLater),
    ] {
        let mut trace = direct(AcceptMode::STRICT);
        let failed = list(trace.0.on_failed(outcome, error, Blame::Them));
        let recorded = Action::Failed(outcome, Blame::Them);
        assert_eq!(failed, [recorded, answer, Action::End(outcome)]);
    }
}

#[test]
fn early_client_refused_when_accepted() {
    let mut trace = direct(AcceptMode::EARLY);
    let refused = Outcome::UpstreamRefused;
    let failed = list(trace.0.on_failed(refused, None, Blame::Them));
    assert_eq!(failed, [Action::Failed(refused, Blame::Them)]);
    let validated = list(trace.0.on_validated());
    assert_eq!(validated, [Action::Release, Action::Refuse(refused, None)]);
}

#[test]
fn unvalidated_connection_withdrawn() {
    let mut trace = direct(AcceptMode::EARLY);
    assert_eq!(trace.0.deadline(), ms(700));
    assert_eq!(list(trace.0.on_syn_ack(syn_ack(1), ms(40))), []);
    let withdrawn = [
        Action::Close,
        Action::ReleaseUpstream,
        Action::ResetServer(syn_ack(1)),
    ];
    assert_eq!(list(trace.0.on_time(false, ms(700))), withdrawn);
    let validated = list(trace.0.on_validated());
    assert_eq!(validated, [Action::Release, Action::Begin]);
}

#[test]
fn strict_connection_restrained_once() {
    let mut trace = direct(AcceptMode::STRICT);
    assert_eq!(list(trace.0.on_time(false, ms(700))), [Action::Restrain]);
    assert_eq!(list(trace.0.on_time(false, ms(950))), []);
    let given_up = list(trace.0.on_time(false, ms(10_000)));
    assert_eq!(given_up, [Action::GiveUp { unsent: false }]);
}

#[test]
fn absent_client_expires() {
    let mut trace = direct(AcceptMode::EARLY);
    trace.0.on_time(false, ms(700));
    assert_eq!(list(trace.0.on_time(false, ms(4999))), []);
    let expired = list(trace.0.on_time(false, ms(5000)));
    assert_eq!(expired, [Action::End(Outcome::ClientAbsent)]);
}

#[test]
fn no_room_for_half_open_waits() {
    let mut early = direct(AcceptMode::EARLY);
    assert!(early.0.put_off());
    let validated = list(early.0.on_validated());
    assert_eq!(validated, [Action::Release, Action::Begin]);
    assert!(!direct(AcceptMode::STRICT).0.put_off(), "it cannot wait");
}

#[test]
fn warm_hop_joined_before_reply() {
    let mut trace = begun(AcceptMode::LATE, Arrival::Plain, &[hop(2)]);
    let opened = trace.opens(2, Sent::Warm, 0);
    assert_eq!(opened, [Action::AwaitReply, Action::Join]);
}

#[test]
fn unvalidated_client_owes_message() {
    let mut trace = begun(AcceptMode::EARLY, Arrival::Plain, &[hop(2)]);
    let opened = trace.opens(2, Sent::Warm, 0);
    assert_eq!(opened, [Action::AwaitReply]);
    let joined = [Action::Release, Action::SendValidated, Action::Join];
    assert_eq!(list(trace.0.on_validated()), joined);
}

/// The message that its client is validated does not wait: the last node restrains its SYN until then.
// promise: K15
#[test]
fn doubted_hop_gets_no_byte_before_reply() {
    let mut trace = begun(AcceptMode::EARLY, Arrival::Plain, &[hop(2), hop(3)]);
    let opened = trace
        .0
        .on_hop_opened(path(2), in_doubt(2), Sent::Warm, ms(0));
    assert_eq!(list(opened), [Action::AwaitReply]);
    let validated = [Action::Release, Action::SendValidated];
    assert_eq!(list(trace.0.on_validated()), validated);
    let replied = trace.0.on_reply(Some(Reply::Connected), ms(50));
    let connected = Action::Report(Report::Connected(path(2)));
    assert_eq!(list(replied), [connected, Action::Join]);
}

// promise: K15
#[test]
fn doubted_hop_left_when_silent() {
    let mut trace = begun(AcceptMode::LATE, Arrival::Plain, &[hop(2), hop(3)]);
    let opened = trace
        .0
        .on_hop_opened(path(2), in_doubt(2), Sent::Warm, ms(0));
    assert_eq!(list(opened), [Action::AwaitReply]);
    assert_eq!(list(trace.0.on_hop_silent()), [Action::Close, Action::Try]);
    trace.tries(hop(3), 700);
}

/// Whichever comes first: the look at the hop, the deadline of the flow, or an error that a router has sent.
#[test]
fn silent_uplink_left() {
    let ends: [fn(&mut Opening) -> Actions; 3] = [
        Opening::on_hop_late,
        |opening| opening.on_time(false, ms(500)),
        |opening| opening.on_hop_unaccepted(false),
    ];
    for end in ends {
        let mut trace = begun(AcceptMode::LATE, Arrival::Plain, &[hop(2)]);
        let opened = trace.opens(2, Sent::Uplink, 0);
        assert_eq!(opened, [Action::LookAt(ms(500))]);
        let late = end(&mut trace.0);
        assert_eq!(
            list(late),
            [Action::UplinkSilent, Action::Close, Action::Try]
        );
        let order = trace.tries(hop(2), 500);
        assert!(order.cold && !order.without_syn_option);
    }
}

/// That its client is validated may be what shows that a hop is gone.
#[test]
fn hop_gone_at_the_validation_left() {
    let mut trace = begun(AcceptMode::EARLY, Arrival::Plain, &[hop(2)]);
    trace.opens(2, Sent::Warm, 0);
    let joined = [Action::Release, Action::SendValidated, Action::Join];
    assert_eq!(list(trace.0.on_validated()), joined);
    // The message could not be sent, so the flow was not joined.
    let lost = list(trace.0.on_reply(None, ms(30)));
    assert_eq!(lost, [Action::Close, Action::Try]);
    assert!(trace.tries(hop(2), 30).cold);
    trace.opens(2, Sent::Cold, 30);
    // The request on the new hop reports that the client is validated.
    assert_eq!(
        list(trace.0.on_hop_accepted()),
        [Action::AwaitReply, Action::Join]
    );
}

#[test]
fn gone_warm_hop_retried_cold() {
    let mut trace = begun(AcceptMode::EARLY, Arrival::Plain, &[hop(2)]);
    trace.opens(2, Sent::Warm, 0);
    let lost = list(trace.0.on_reply(None, ms(30)));
    assert_eq!(lost, [Action::Close, Action::Try]);
    let order = trace.tries(hop(2), 30);
    assert!(order.cold && !order.without_syn_option);
}

#[test]
fn rejected_option_retried_without() {
    let mut trace = begun(AcceptMode::EARLY, Arrival::Plain, &[hop(2)]);
    trace.opens(2, Sent::SynOption, 0);
    let rejected = list(trace.0.on_hop_unaccepted(true));
    assert_eq!(rejected, [Action::Close, Action::Try]);
    let order = trace.tries(hop(2), 30);
    assert!(order.cold && order.without_syn_option);
    trace.0.on_hop_opened(path(2), order, Sent::Cold, ms(30));
    let accepted = list(trace.0.on_hop_accepted());
    let ignored = Action::SynOptionIgnored(path(2).peer);
    assert_eq!(accepted, [ignored, Action::AwaitReply]);
}

#[test]
fn late_node_left_for_the_next() {
    let mut trace = begun(AcceptMode::EARLY, Arrival::Plain, &[hop(2), hop(3)]);
    let opened = trace.opens(2, Sent::Cold, 0);
    assert_eq!(opened, [Action::LookAt(ms(1500))]);
    let late = list(trace.0.on_time(false, ms(1500)));
    let unreached = Action::Report(Report::Unreached(path(2).peer));
    let left = [Action::Close, Action::HopFailed, unreached, Action::Try];
    assert_eq!(late, left);
    trace.tries(hop(3), 1500);
}

#[test]
fn only_chain_repeated_once() {
    let mut trace = begun(AcceptMode::EARLY, Arrival::Plain, &[hop(2)]);
    for round in 0..2 {
        trace.opens(2, Sent::Cold, round);
        trace.0.on_hop_accepted();
        let failed = list(trace.0.on_reply(Some(Reply::Failed), ms(90)));
        let repeats = failed.contains(&Action::Try);
        assert_eq!(repeats, round == 0, "{failed:?}");
        if repeats {
            trace.tries(hop(2), 90);
        }
    }
    let refused = list(trace.0.on_validated());
    let outcome = Outcome::HopFailed;
    assert_eq!(refused, [Action::Release, Action::Refuse(outcome, None)]);
}

#[test]
fn server_failure_ends_candidates() {
    let next = [hop(2), NextHop::Direct];
    let mut trace = begun(AcceptMode::LATE, Arrival::Plain, &next);
    trace.opens(2, Sent::Cold, 0);
    let refused = list(trace.0.on_reply(Some(Reply::Refused), ms(90)));
    let outcome = Outcome::UpstreamRefused;
    let end = [
        Action::Close,
        Action::Failed(outcome, Blame::Them),
        Action::Refuse(outcome, None),
    ];
    assert_eq!(refused, end);
}

#[test]
fn request_after_its_option() {
    let mut trace = begun(AcceptMode::STRICT, Arrival::SynOption, &[NextHop::Direct]);
    assert_eq!(list(trace.0.on_syn_ack(syn_ack(1), ms(40))), []);
    let hops = Hops::new(vec![NextHop::Direct], None);
    let requested = list(trace.0.on_request(Arrival::Peer, false, hops, ms(60)));
    assert_eq!(requested, [Action::Answer]);
    let validated = list(trace.0.on_validated());
    assert_eq!(validated, [Action::Release, Action::LetIn(syn_ack(1))]);
}

#[test]
fn option_put_off_until_request() {
    let mut trace = begun(AcceptMode::STRICT, Arrival::SynOption, &[NextHop::Direct]);
    assert!(trace.0.put_off());
    let hops = Hops::new(vec![NextHop::Direct], None);
    let requested = list(trace.0.on_request(Arrival::Peer, true, hops, ms(60)));
    assert_eq!(requested, [Action::Release, Action::Try]);
}

#[test]
fn silent_trial_forwarded() {
    let opening = Opening::new(AcceptMode::STRICT, Arrival::Plain, CONNECT, EXPIRY, ms(0));
    let mut trace = Trace(as_trial(opening));
    let hops = Hops::new(vec![NextHop::Direct], None);
    trace.0.on_begin(hops, Duration::from_millis(300), ms(0));
    trace.tries(NextHop::Direct, 0);
    let due = list(trace.0.on_time(false, ms(300)));
    assert_eq!(due, [Action::GiveUp { unsent: false }]);
    let timeout = Outcome::ConnectTimeout;
    let failed = list(trace.0.on_failed(timeout, None, Blame::Them));
    let forwarded = [
        Action::Failed(timeout, Blame::Them),
        Action::PassOn,
        Action::TrialFailed(timeout),
        Action::End(timeout),
    ];
    assert_eq!(failed, forwarded);
}

#[test]
fn unanswered_trial_forwarded() {
    let opening = Opening::new(AcceptMode::STRICT, Arrival::Plain, CONNECT, EXPIRY, ms(0));
    let mut trace = Trace(as_trial(opening));
    let hops = Hops::new(vec![NextHop::Direct], None);
    trace.0.on_begin(hops, Duration::from_millis(300), ms(0));
    trace.tries(NextHop::Direct, 0);
    assert_eq!(
        list(trace.0.on_syn_ack(syn_ack(1), ms(40))),
        [Action::Admit]
    );
    assert_eq!(list(trace.0.on_time(false, ms(90))), [Action::CheckTrial]);
    let forwarded = [
        Action::ResetServer(syn_ack(1)),
        Action::Close,
        Action::TrialUndelivered,
        Action::PassOn,
        Action::End(Outcome::ClientAbsent),
    ];
    assert_eq!(list(trace.0.on_trial_checked(false, ms(90))), forwarded);
}

#[test]
fn relay_rerouted_only_undelivered() {
    let joined = Joined {
        via: path(2),
        origin: Origin::Here,
        is_awaited: true,
        failed: Some(Reply::Failed),
        is_undelivered: true,
        is_closed_hop: false,
        is_abandoned: false,
    };
    let reset = Outcome::UpstreamReset;
    let last = |joined: Joined| list(joined.on_end(reset)).pop().unwrap();
    let outcome = Outcome::HopFailed;
    let reroute = Action::Reroute {
        repeat: true,
        outcome,
    };
    assert_eq!(last(joined), reroute);
    let is_undelivered = false;
    let delivered = Joined {
        is_undelivered,
        ..joined
    };
    assert_eq!(last(delivered), Action::End(outcome));
    let abandoned = Joined {
        is_abandoned: true,
        ..joined
    };
    assert_eq!(last(abandoned), Action::End(reset));
    let closed = Joined {
        is_closed_hop: true,
        ..joined
    };
    // Nothing is known against the node: no report, no count.
    assert_eq!(list(closed.on_end(reset)), [Action::Redial]);
    let failed = Some(Reply::Refused);
    let refused = Action::Refuse(Outcome::UpstreamRefused, None);
    assert_eq!(last(Joined { failed, ..joined }), refused);
    let unreported = Joined {
        failed: None,
        ..joined
    };
    assert_eq!(last(unreported), Action::End(reset));
}

#[test]
fn drain_forwards_held_syn() {
    let mut strict = direct(AcceptMode::STRICT);
    let drained = [Action::PassOn, Action::End(Outcome::Drained)];
    assert_eq!(list(strict.0.on_drain()), drained);
    assert_eq!(list(direct(AcceptMode::EARLY).0.on_drain()), []);
}
