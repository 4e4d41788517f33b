// SPDX-License-Identifier: Apache-2.0
//! What nodes that follow a controller are told that they must not believe.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use posthaste_control::frame::MESSAGE_MAX;
use posthaste_control::message::{Link, LinkState, Rows, Stamp, ToController, ToNode};
use posthaste_control::rows::checksum_of;
use posthaste_lab::network::Family;
use posthaste_wire::header::NodeId;
use posthaste_wire::seal::Key;
use posthaste_wire::stamp::{self, ErrorEstimate, Probe, Timestamp};

use super::impostor::Impostor;
use super::scene::{CHAIN, NUMBERS, Scene, Settings};
use crate::controller::site::{FAMILIES, identity, up};
use crate::support::{SOON, until};
use crate::watch::wait_for_line;

#[test]
fn a_plan_that_was_there_before_is_refused_counted_and_logged() {
    let mut scene = Scene::start(&Settings::of(Family::V4));
    scene.site.end(Signal::SIGKILL);
    let (mut impostor, hello) = Impostor::await_one(&scene.site);
    let ToController::Hello(hello) = hello else {
        panic!("{hello:?} comes first");
    };
    let held = hello.holds.unwrap();
    let replayed = Stamp {
        version: held.version - 1,
        ..held
    };
    let mut rows = Rows {
        stamp: replayed,
        base: None,
        sizes: vec![1],
        access_us: vec![0],
        chains: Vec::new(),
        chains_gone: Vec::new(),
        ways: Vec::new(),
        ways_gone: Vec::new(),
        checksum: 0,
    };
    rows.checksum = checksum_of(&rows);
    for stamp in [replayed, held] {
        rows.stamp = stamp;
        rows.checksum = checksum_of(&rows);
        impostor.say(&ToNode::Rows(rows.clone()));
        let answer = impostor.until(|message| match message {
            ToController::Holds(stamp) => Some(stamp),
            _ => None,
        });
        assert_eq!(answer, held, "what it holds goes on");
    }
    // Rows that were changed on their way are asked for again.
    rows.stamp.version += 1;
    impostor.say(&ToNode::Rows(rows));
    impostor.until(|message| matches!(message, ToController::Misfit { .. }).then_some(()));
    let refused = |reason: &str| {
        let name = format!("posthaste_plan_refused_total{{reason=\"{reason}\"}}");
        scene.metric(1, &name)
    };
    assert_eq!(
        (refused("older"), refused("misfit")),
        (Some(2.0), Some(1.0))
    );
    wait_for_line(scene.node(1), &["msg=\"plan refused\""]);
    assert!(
        Family::ALL
            .iter()
            .all(|family| scene.carry(*family) == CHAIN)
    );
    // More than a message may have.
    let long = u32::try_from(MESSAGE_MAX + 1).unwrap().to_be_bytes();
    impostor.say_raw(&long);
    impostor.until_closed();
    drop(impostor);
    assert!(
        Family::ALL
            .iter()
            .all(|family| scene.carry(*family) == CHAIN)
    );
    scene.site.start();
    until("the real one is followed", || {
        NUMBERS
            .into_iter()
            .all(|number| scene.following(number)["joined"] == true)
    });
    scene.until_carried(&CHAIN);
}

#[test]
fn forged_probes_liars_and_strangers_change_no_plan() {
    let mut settings = Settings::of(Family::V6);
    settings.listed.push(4);
    let scene = Scene::start(&settings);
    // Says that it is next to everybody, and that there are links that cannot be.
    let mut liar = scene.site.node(4, FAMILIES[0]);
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
    liar.say_links(&lies);
    let lied = "posthaste_controller_reports_refused_total";
    scene
        .site
        .until_metric(&format!("{lied}{{reason=\"impossible\"}}"), 1.0);
    scene
        .site
        .until_metric(&format!("{lied}{{reason=\"stranger\"}}"), 1.0);
    // Nobody's key.
    if let Ok(mut stream) = scene.site.stream(&identity(9), FAMILIES[1]) {
        assert!(stream.receive(SOON).is_err());
    }
    let strangers = "posthaste_controller_strangers_total{reason=\"key\"}";
    scene.site.until_metric(strangers, 1.0);
    forge(&scene);
    assert!(
        Family::ALL
            .iter()
            .all(|family| scene.carry(*family) == CHAIN)
    );
    scene.site.until_said("msg=\"stranger turned away\"");
}

/// Sends probes to one's reflector that two might have sent, but for the seal.
fn forge(scene: &Scene) {
    let refused = || {
        let links = scene.node(1).admin_json("links").unwrap();
        links["refused"]["seal"].as_u64().unwrap()
    };
    let before = refused();
    let address = scene.address(1, Family::V6);
    let bind = || std::net::UdpSocket::bind("[::]:0");
    let socket = scene.network.client().run_in(bind).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for sequence in 0..20 {
        let probe = Probe {
            sequence,
            sent: Timestamp::from_unix(now + Duration::from_millis(sequence.into())),
            error: ErrorEstimate::OURS,
            session: stamp::session(NodeId::new(2).unwrap()),
        };
        let sealed = probe.seal(&stamp::key(&Key::new([9; 32])));
        let to = SocketAddr::new(address, stamp::PORT);
        socket.send_to(&sealed, to).unwrap();
    }
    until("refusals", || refused() >= before + 20);
    wait_for_line(scene.node(1), &["measuring packet refused", "reason=seal"]);
}
