// SPDX-License-Identifier: Apache-2.0
//! Messages of a controller that nodes must refuse.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use posthaste_control::frame::MESSAGE_MAX;
use posthaste_control::message::{Link, LinkState, PlanVersion, RouteUpdate, ToController, ToNode};
use posthaste_control::route_table::checksum_of;
use posthaste_lab::network::Family;
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;
use posthaste_wire::stamp::{self, ErrorEstimate, Probe, Timestamp};

use super::fixture::{CHAIN, Fixture, NUMBERS, Settings};
use super::impostor::Impostor;
use crate::controller::testbed::{FAMILIES, identity, up};
use crate::support::{SOON, until};
use crate::watch::wait_for_line;

// promise: S9
#[test]
fn replayed_plan_refused() {
    let mut fixture = Fixture::start(&Settings::of(Family::V4));
    fixture.testbed.end(Signal::SIGKILL);
    let (mut impostor, hello) = Impostor::await_one(&fixture.testbed);
    let ToController::Hello(hello) = hello else {
        panic!("{hello:?} is the first message");
    };
    let held = hello.holds.unwrap();
    let replayed = PlanVersion {
        version: held.version - 1,
        ..held
    };
    let mut update = RouteUpdate {
        plan_version: replayed,
        base: None,
        sizes: vec![1],
        access_us: vec![0],
        routes: Vec::new(),
        routes_removed: Vec::new(),
        checksum: 0,
    };
    update.checksum = checksum_of(&update);
    for plan_version in [replayed, held] {
        update.plan_version = plan_version;
        update.checksum = checksum_of(&update);
        impostor.deliver(&ToNode::RouteUpdate(update.clone()));
        let answer = impostor.until(|message| match message {
            ToController::Holds(plan_version) => Some(plan_version),
            _ => None,
        });
        assert_eq!(answer, held, "it keeps its plan");
    }
    // The node requests damaged updates again.
    update.plan_version.version += 1;
    impostor.deliver(&ToNode::RouteUpdate(update));
    impostor.until(|message| matches!(message, ToController::Nack { .. }).then_some(()));
    let refused = |reason: &str| {
        let name = format!("posthaste_plan_refused_total{{reason=\"{reason}\"}}");
        fixture.metric(1, &name)
    };
    assert_eq!((refused("older"), refused("nack")), (Some(2.0), Some(1.0)));
    wait_for_line(fixture.node(1), &["msg=\"plan refused\""]);
    assert!(
        Family::ALL
            .iter()
            .all(|family| fixture.carry(*family) == CHAIN)
    );
    // More than a message may have.
    let long = u32::try_from(MESSAGE_MAX + 1).unwrap().to_be_bytes();
    impostor.send_raw(&long);
    impostor.until_closed();
    drop(impostor);
    assert!(
        Family::ALL
            .iter()
            .all(|family| fixture.carry(*family) == CHAIN)
    );
    fixture.testbed.start();
    until("the real one is followed", || {
        NUMBERS
            .into_iter()
            .all(|number| fixture.following(number)["connected"] == true)
    });
    fixture.until_carried(&CHAIN);
}

// promise: S10
#[test]
fn forgeries_change_no_plan() {
    let mut settings = Settings::of(Family::V6);
    settings.listed.push(4);
    let fixture = Fixture::start(&settings);
    // It reports that it is near all others, and links that cannot exist.
    let mut liar = fixture.testbed.node(4, FAMILIES[0]);
    let mut lies: Vec<Link> = NUMBERS.map(|number| up(number, 1)).to_vec();
    lies.push(Link {
        to: 1,
        state: LinkState::Up {
            rtt_us: 0,
            loss_ppm: Some(2_000_000),
            rate: Some(0),
        },
    });
    lies.push(up(77, 1));
    liar.report_links(&lies);
    let lied = "posthaste_controller_reports_refused_total";
    fixture
        .testbed
        .until_metric(&format!("{lied}{{reason=\"impossible\"}}"), 1.0);
    fixture
        .testbed
        .until_metric(&format!("{lied}{{reason=\"unauthorized\"}}"), 1.0);
    // A key of no node.
    if let Ok(mut stream) = fixture.testbed.stream(&identity(9), FAMILIES[1]) {
        assert!(stream.receive(SOON).is_err());
    }
    let unauthorized = "posthaste_controller_unauthorized_total{reason=\"key\"}";
    fixture.testbed.until_metric(unauthorized, 1.0);
    forge(&fixture);
    assert!(
        Family::ALL
            .iter()
            .all(|family| fixture.carry(*family) == CHAIN)
    );
    fixture.testbed.until_logged("msg=\"unknown key rejected\"");
}

/// Sends probes to one's reflector that two might have sent, but for the authentication tag.
fn forge(fixture: &Fixture) {
    let refused = || {
        let links = fixture.node(1).admin_json("links").unwrap();
        links["refused"]["auth"].as_u64().unwrap()
    };
    let before = refused();
    let address = fixture.address(1, Family::V6);
    let bind = || std::net::UdpSocket::bind("[::]:0");
    let socket = fixture.network.client().run_in(bind).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for sequence in 0..20 {
        let probe = Probe {
            sequence,
            sent: Timestamp::from_unix(now + Duration::from_millis(sequence.into())),
            error: ErrorEstimate::OURS,
            session: stamp::session(NodeId::new(2).unwrap()),
        };
        let authenticated = probe.auth(&stamp::key(&Key::new([9; 32])));
        let to = SocketAddr::new(address, stamp::PORT);
        socket.send_to(&authenticated, to).unwrap();
    }
    until("refusals", || refused() >= before + 20);
    wait_for_line(
        fixture.node(1),
        &["measuring packet refused", "reason=auth"],
    );
}
