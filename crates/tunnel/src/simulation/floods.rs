// SPDX-License-Identifier: Apache-2.0
//! Handshakes that anyone sends.

use super::*;

/// Whether a datagram is a Retry packet (RFC 9000 section 17.2.5).
fn is_retry(datagram: &[u8]) -> bool {
    datagram[0] & 0xf0 == 0xf0
}

/// First packets with a server name that the acceptor does not know: it answers each at once, and no
/// handshake is left that would count.
fn first_packets(count: usize, now: Duration) -> Vec<Vec<u8>> {
    let [mut dialer, _] = credentials();
    dialer.name = "node-3-key-0.posthaste.invalid".to_owned();
    let mut end = Endpoint::new(ms(0), (&[8; 32], 0), Arc::default(), now);
    let packets = (0..count).map(|_| {
        end.dial(address(1), &dialer, 0, now).unwrap();
        let mut packet = Vec::new();
        let (_, transmit) = end.poll_transmit(1, &mut packet, now).unwrap();
        packet.truncate(transmit.size);
        packet
    });
    packets.collect()
}

// promise: B18
#[test]
fn flood_of_first_packets_begins_few_handshakes() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    let packets = first_packets(1_000, network.now);
    let (mut retries, mut others) = (0, 0);
    for (number, packet) in (0..).zip(&packets) {
        let from = SocketAddr::new([198, 51, 100, 1].into(), 1024 + number);
        let mut answer = Vec::new();
        let path = (from, None, 0);
        let now = network.now;
        let (_, sent) = network.ends[1].on_datagram(path, None, packet, &mut answer, now);
        match sent {
            Some(sent) if is_retry(&answer[..sent.size]) => retries += 1,
            _ => others += 1,
        }
    }
    assert!(retries >= 900 && others <= 100, "{retries} {others}");
    // A dialer shows where it is, which takes it one round trip more.
    let [dialer, _] = credentials();
    network.events = [Vec::new(), Vec::new()];
    let now = network.now;
    network.ends[0].dial(address(1), &dialer, 0, now).unwrap();
    network.run_until("up", Network::is_up);
    assert!(network.now < now + ms(200), "{:?}", network.now - now);
}
