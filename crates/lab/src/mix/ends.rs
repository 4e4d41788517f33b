// SPDX-License-Identifier: Apache-2.0
//! Clients and servers of all connections of a network, a thread for each end.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::plan::{Connection, Kind, PORTS};
use super::testbed::Testbed;
use crate::stream::{self, End, Listeners, STACK_BYTES, expect_end, finish, receive, send};

/// How long an end waits for the other before the connection counts as hung.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same of a client whose service is down, connected or not: longer than it takes to repeat a SYN.
const PATIENCE_DOWN: Duration = Duration::from_secs(3);

/// The course of a connection for its client. Times are since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) connected: Option<Duration>,
    pub(super) first_byte: Option<Duration>,
    /// When all bytes had arrived.
    pub(super) complete: Option<Duration>,
    pub(super) end: End,
}

/// Starts the services.
pub(super) fn serve(bed: &Testbed, plan: &Arc<Vec<Connection>>) -> Result<Listeners> {
    let mut listeners = Listeners::default();
    for port in PORTS {
        let plan = Arc::clone(plan);
        listeners.add(bed.network.server(), port, move |stream| {
            // The client notices how it ended.
            let _ = answer(stream, &plan);
        })?;
    }
    Ok(listeners)
}

fn answer(mut stream: TcpStream, plan: &[Connection]) -> Option<End> {
    // A client that sends nothing has given up.
    let number = stream::read_number(&mut stream, PATIENCE).ok()?;
    // A damaged number may be any.
    let connection = plan.get(usize::try_from(number).ok()?)?;
    let played = serve_one(connection, &mut stream);
    Some(finish(stream, played, false))
}

fn serve_one(connection: &Connection, stream: &mut TcpStream) -> io::Result<()> {
    let (up, down) = connection.offsets();
    receive(stream, up, connection.up)?;
    thread::sleep(connection.pause);
    send(stream, down, connection.down)
}

/// Plays the clients of all connections from `start` on, and waits for their ends.
pub(super) fn play(bed: &Testbed, plan: &[Connection], start: Instant) -> Result<Vec<Life>> {
    let lives: Vec<OnceLock<Life>> = plan.iter().map(|_| OnceLock::new()).collect();
    let dial = || {
        thread::scope(|scope| -> io::Result<()> {
            for (connection, life) in plan.iter().zip(&lives) {
                thread::sleep((start + connection.at).saturating_duration_since(Instant::now()));
                let work = move || life.get_or_init(|| live(connection));
                // Threads inherit the namespace of the one that starts them.
                let builder = thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, work)?;
            }
            Ok(())
        })
    };
    bed.network.client().run_in(dial)?;
    let lives: Vec<Life> = lives.into_iter().filter_map(OnceLock::into_inner).collect();
    ensure!(lives.len() == plan.len(), "a client has not played");
    Ok(lives)
}

fn live(connection: &Connection) -> Life {
    let mut life = Life {
        connected: None,
        first_byte: None,
        complete: None,
        end: End::Failed,
    };
    let patience = match connection.service.kind {
        Kind::Silent => PATIENCE_DOWN,
        _ => PATIENCE,
    };
    let begun = Instant::now();
    let (source, target) = (connection.source(), connection.service.target());
    let mut stream = match stream::connect(source, target, patience) {
        Ok(stream) => stream,
        Err(end) => return Life { end, ..life },
    };
    life.connected = Some(begun.elapsed());
    let left = patience.saturating_sub(begun.elapsed());
    // No time at all would be no bound.
    let bounded = stream::bound(&stream, left.max(Duration::from_millis(1)));
    let played = bounded.and_then(|()| fetch(connection, &mut stream, begun, &mut life));
    life.end = finish(stream, played, false);
    life
}

fn fetch(
    connection: &Connection,
    stream: &mut TcpStream,
    begun: Instant,
    life: &mut Life,
) -> io::Result<()> {
    let (up, down) = connection.offsets();
    io::Write::write_all(stream, &connection.number.to_be_bytes())?;
    send(stream, up, connection.up)?;
    receive(stream, down, 1)?;
    life.first_byte = Some(begun.elapsed());
    receive(stream, down + 1, connection.down - 1)?;
    life.complete = Some(begun.elapsed());
    expect_end(stream)
}
