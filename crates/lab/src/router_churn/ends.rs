// SPDX-License-Identifier: Apache-2.0
//! The two ends of a connection of each kind.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use super::plan::{Kind, Plan};
use crate::stream::{self, End, expect_end, finish, receive, send};

/// Bound on opening a connection: the first SYN and two retransmissions (RFC 6298).
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How long an end waits for the other before the connection counts as hung. Longer than any fault
/// and the retransmission timeout after it.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// Number of pieces that a slow client sends.
const PAUSES: u64 = 4;

/// Connects from an address; the thread is in the client's namespace.
pub(super) fn connect(plan: &Plan) -> Result<TcpStream, End> {
    stream::connect(plan.client_address(), plan.target(), CONNECT_PATIENCE)
}

/// Runs the client of an open connection.
pub(super) fn play_client(plan: &Plan, mut stream: TcpStream) -> End {
    let played = stream::bound(&stream, PATIENCE).and_then(|()| client(plan, &mut stream));
    finish(stream, played, plan.kind == Kind::ClientReset)
}

/// Runs the server of a connection whose number was read.
pub(super) fn play_server(plan: &Plan, mut stream: TcpStream) -> End {
    let played = server(plan, &mut stream);
    finish(stream, played, plan.kind == Kind::ServerReset)
}

fn client(plan: &Plan, stream: &mut TcpStream) -> io::Result<()> {
    let (up, down) = plan.offsets();
    // The server derives the plan of the connection from its number.
    stream.write_all(&plan.number.to_be_bytes())?;
    if plan.pause.is_zero() {
        send(stream, up, plan.up)?;
    } else {
        for pause in 0..PAUSES {
            let [from, to] = [pause, pause + 1].map(|part| plan.up * part / PAUSES);
            send(stream, up + from, to - from)?;
            thread::sleep(plan.pause);
        }
    }
    match plan.kind {
        Kind::HalfClose => {
            stream.shutdown(Shutdown::Write)?;
            receive(stream, down, plan.down)?;
            expect_end(stream)
        }
        Kind::ClientFirst | Kind::ClientReset => receive(stream, down, plan.down),
        Kind::ServerReset => expect_reset(stream),
        _ => {
            receive(stream, down, plan.down)?;
            expect_end(stream)
        }
    }
}

fn server(plan: &Plan, stream: &mut TcpStream) -> io::Result<()> {
    let (up, down) = plan.offsets();
    receive(stream, up, plan.up)?;
    match plan.kind {
        Kind::HalfClose => {
            expect_end(stream)?;
            send(stream, down, plan.down)
        }
        Kind::ClientFirst => {
            send(stream, down, plan.down)?;
            expect_end(stream)
        }
        Kind::ClientReset => {
            send(stream, down, plan.down)?;
            // A FIN instead of the reset would be a changed end: the relay must pass it on as it
            // is.
            expect_reset(stream)
        }
        Kind::ServerReset => Ok(()),
        _ => send(stream, down, plan.down),
    }
}

/// Expects nothing but the other end's reset.
fn expect_reset(stream: &mut TcpStream) -> io::Result<()> {
    match stream.read(&mut [0]) {
        Err(error) if End::of(&error) == End::Reset => Ok(()),
        Err(error) => Err(error),
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(_) => Err(ErrorKind::InvalidData.into()),
    }
}
