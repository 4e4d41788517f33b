// SPDX-License-Identifier: Apache-2.0
//! The two ends of a connection. Each compares every byte, and reports how the connection ended for
//! it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use socket2::Socket;

use super::plan::{Kind, Plan};
use crate::names::named;
use crate::{content, socket};

/// Bound on opening a connection: the first SYN and two retransmissions (RFC 6298).
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How long an end waits for the other before the connection counts as hung. Longer than any fault
/// and the retransmission timeout after it.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes per read and write.
const PIECE_BYTES: usize = 16 * 1024;
/// Number of pieces that a slow client sends.
const PAUSES: u64 = 4;

sockopt_impl!(
    /// Leaves the port to `connect`, which knows the destination.
    BindAddressNoPort,
    SetOnly,
    libc::SOL_IP,
    libc::IP_BIND_ADDRESS_NO_PORT,
    bool
);

named! {
    /// How a connection ended for one of its ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub(super) enum End {
        /// As planned, with every byte.
        Planned = "as planned",
        /// The attempt was refused by a reset.
        Refused = "refused",
        /// The attempt was answered by an ICMP error.
        Unreachable = "unreachable",
        /// The attempt was not answered.
        Silent = "unanswered",
        /// By a reset that the other end did not send.
        Reset = "reset",
        /// Nothing arrived for [`PATIENCE`].
        Hung = "hung",
        /// By a FIN before all bytes.
        Cut = "cut off",
        /// With a wrong byte, or one too many.
        Changed = "changed",
        /// This end failed to run.
        Failed = "failed",
    }
}

impl End {
    /// The end of an open connection.
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                Self::Reset
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Hung,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Self::Unreachable,
            ErrorKind::UnexpectedEof => Self::Cut,
            ErrorKind::InvalidData => Self::Changed,
            _ => Self::Failed,
        }
    }

    /// The end of a failed attempt.
    fn of_attempt(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Silent,
            // The socket was hung up without an error: as by an ICMP error at its last SYN.
            ErrorKind::Other => Self::Unreachable,
            _ => Self::of(error),
        }
    }
}

/// Connects from an address; the thread is in the client's namespace.
pub(super) fn connect(plan: &Plan) -> Result<TcpStream, End> {
    let dial = || {
        let target = plan.target();
        let socket = socket::toward(target)?;
        // The namespace has the addresses of all clients. `connect` chooses a port that is free toward
        // the target.
        setsockopt(&socket, BindAddressNoPort, &true)?;
        socket.bind(&SocketAddr::new(plan.client_address(), 0).into())?;
        socket.connect_timeout(&target.into(), CONNECT_PATIENCE)?;
        Ok(TcpStream::from(socket))
    };
    dial().map_err(|error: io::Error| End::of_attempt(&error))
}

/// Runs the client of an open connection.
pub(super) fn play_client(plan: &Plan, mut stream: TcpStream) -> End {
    let played = patient(&stream).and_then(|()| client(plan, &mut stream));
    finish(stream, played, plan.kind == Kind::ClientReset)
}

/// Runs the server of a connection whose number was read.
pub(super) fn play_server(plan: &Plan, mut stream: TcpStream) -> End {
    let played = server(plan, &mut stream);
    finish(stream, played, plan.kind == Kind::ServerReset)
}

/// The number of a connection, which its client sends first.
pub(super) fn read_number(stream: &mut TcpStream) -> io::Result<u64> {
    patient(stream)?;
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    Ok(u64::from_be_bytes(number))
}

fn patient(stream: &TcpStream) -> io::Result<()> {
    // Small messages in both directions would wait for delayed acknowledgements otherwise.
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// Closes; by a reset after a failure, so that the other end cannot take it for a clean end.
fn finish(stream: TcpStream, played: io::Result<()>, resets: bool) -> End {
    if resets || played.is_err() {
        // A socket that is gone needs no reset.
        let _ = Socket::from(stream).set_linger(Some(Duration::ZERO));
    }
    played.map_or_else(|error| End::of(&error), |()| End::Planned)
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

fn send(stream: &mut TcpStream, mut offset: u64, mut bytes: u64) -> io::Result<()> {
    while bytes > 0 {
        let piece = content::part(offset, bytes);
        stream.write_all(piece)?;
        offset += piece.len() as u64;
        bytes -= piece.len() as u64;
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, mut offset: u64, mut bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    while bytes > 0 {
        let room = bytes.min(PIECE_BYTES as u64);
        let room = usize::try_from(room).unwrap_or(PIECE_BYTES);
        let length = match stream.read(&mut buffer[..room]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        // Every byte: the load is light, and a rare fault must not pass.
        if !content::matches(offset, &buffer[..length]) {
            return Err(ErrorKind::InvalidData.into());
        }
        offset += length as u64;
        bytes -= length as u64;
    }
    Ok(())
}

/// Expects nothing but the other end's FIN.
fn expect_end(stream: &mut TcpStream) -> io::Result<()> {
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(ErrorKind::InvalidData.into()),
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
