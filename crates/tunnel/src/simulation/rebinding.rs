// SPDX-License-Identifier: Apache-2.0
//! A NAT between the ends gives the dialer another address.

use super::*;

fn elsewhere() -> [SocketAddr; 2] {
    ["192.0.2.1:50000", "198.51.100.7:4480"].map(|text| text.parse().unwrap())
}

/// The flow continues whichever of the ends has something to send.
// promise: K30
#[test]
fn flow_survives_another_address_of_its_dialer() {
    for (to, sender) in elsewhere().into_iter().flat_map(|to| [(to, 0), (to, 1)]) {
        let (mut network, stream, accepted) = Network::with_stream();
        assert_eq!(network.ends[1].read(accepted, &mut [0; 9]).unwrap(), 7);
        let streams = [stream, accepted];
        for _ in 0..3 {
            network.dialer = if network.dialer == to { address(0) } else { to };
            // The NAT rejects what is sent to the former address.
            network.ends[1].on_refused(accepted.connection, network.now);
            let moved = network.now;
            let bytes = [7; 100_000];
            let written = network.ends[sender].write(streams[sender], &bytes).unwrap();
            assert_eq!(written, bytes.len());
            let mut arrived = 0;
            while arrived < written {
                network.turn();
                let read = network.ends[1 - sender].read(streams[1 - sender], &mut [0; 64_000]);
                arrived += read.unwrap_or(0);
                let lasted = network.now - moved;
                assert!(lasted < ms(8_000), "{to} {sender}: {arrived} bytes");
            }
            assert_eq!(network.ends[1].take_moved(), [accepted.connection]);
            assert_eq!(
                network.ends[1].remote(accepted.connection),
                Some(network.dialer)
            );
            network.run_for(ms(3_000));
        }
        network.run_for(ms(20_000));
        assert!(!network.is_lost(0) && !network.is_lost(1), "{to} {sender}");
        assert!(network.ends[1].is_usable(accepted.connection, network.now));
    }
}

/// One packet with a forged source leads a connection nowhere.
// promise: K30
#[test]
fn unvalidated_address_is_left_again() {
    let (mut network, stream, accepted) = Network::with_stream();
    let [_, forged] = elsewhere();
    network.dialer = forged;
    network.ends[0].write(stream, b"first").unwrap();
    network.run_until("moved", |network| {
        network.ends[1].remote(accepted.connection) == Some(forged)
    });
    network.dialer = address(0);
    network.run_for(ms(5_000));
    assert_eq!(
        network.ends[1].remote(accepted.connection),
        Some(address(0))
    );
    network.ends[1].write(accepted, b"answer").unwrap();
    network.run_for(ms(100));
    assert_eq!(network.ends[0].read(stream, &mut [0; 9]).unwrap(), 6);
}
