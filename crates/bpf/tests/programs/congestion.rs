// SPDX-License-Identifier: Apache-2.0
//! The congestion control of hops, registered with this kernel. Needs Linux 6.4 with type information.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use posthaste_bpf::Congestion;

/// What arrives of bytes that a socket with this congestion control sends over loopback.
fn transfer(listener: &TcpListener, name: &str, bytes: usize) -> usize {
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    SockRef::from(&sender)
        .set_tcp_congestion(name.as_bytes())
        .unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let sending = thread::spawn(move || sender.write_all(&vec![7; bytes]).unwrap());
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).unwrap();
    sending.join().unwrap();
    assert!(received.iter().all(|byte| *byte == 7));
    received.len()
}

#[test]
fn registered_while_held() {
    let congestion = Congestion::register().unwrap();
    let name = congestion.name().to_owned();
    let listeners = [
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
        TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap(),
    ];
    for listener in &listeners {
        for _ in 0..3 {
            assert_eq!(transfer(listener, &name, 5_000_000), 5_000_000);
        }
    }
    drop(congestion);
    let socket = TcpStream::connect(listeners[0].local_addr().unwrap()).unwrap();
    let is_refused = || {
        let set = SockRef::from(&socket).set_tcp_congestion(name.as_bytes());
        set.is_err()
    };
    // A process that another test starts has all descriptors until it runs its program.
    let refused = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(50));
        is_refused()
    });
    assert!(refused);
}
