// SPDX-License-Identifier: Apache-2.0
//! Both ends of bulk transfers: one direction carries the pattern, of which every byte is checked
//! and timed where it arrives.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};

use crate::netns::Namespace;
use crate::{content, socket, sys};

/// Bytes written or read at a time.
const CHUNK: usize = 64 * 1024;
/// How long a transfer takes if nothing is lost: relays leave after some seconds, and the rest of it
/// should show what then happens.
const LASTS: u64 = 20;
/// A connection without progress for so long hangs.
pub(crate) const HANG: Duration = Duration::from_secs(60);
/// Bytes of a request: whether it is paced, 1 for an upload and 0 for a download, and the bytes of it.
const REQUEST_BYTES: usize = 16;
/// Time between two looks for a new connection.
const PAUSE: Duration = Duration::from_millis(1);

/// One transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) target: SocketAddr,
    pub(crate) congestion: &'static str,
    pub(crate) uploads: bool,
    pub(crate) bytes: u64,
    pub(crate) is_paced: bool,
}

/// When bytes arrived: time since 1970 and bytes so far, at each read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(pub(crate) Vec<(f64, u64)>);

/// What arrived, and what went wrong.
pub(crate) type Arrived = (Trace, Result<()>);

type Uploads = Arc<Mutex<HashMap<SocketAddr, Arrived>>>;

/// Serves on ports, each with its congestion control.
#[derive(Debug)]
pub(crate) struct Servers {
    uploads: Uploads,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    pub(crate) fn start(namespace: &Namespace, ports: &[(u16, &'static str)]) -> Result<Self> {
        let mut servers = Self {
            uploads: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for (port, congestion) in ports {
            let prepare = |socket: &socket2::Socket| socket.set_nonblocking(true);
            let listening = namespace.run_in(|| socket::listen(*port, prepare));
            let congestion = *congestion;
            let listener = std::net::TcpListener::from(listening.context("listen")?);
            let (uploads, stop) = (Arc::clone(&servers.uploads), Arc::clone(&servers.stop));
            servers.threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Ok((stream, peer)) = listener.accept() else {
                        thread::sleep(PAUSE);
                        continue;
                    };
                    let uploads = Arc::clone(&uploads);
                    // It ends with its client, at the latest after HANG.
                    thread::spawn(move || serve(stream, peer, congestion, &uploads));
                }
            }));
        }
        Ok(servers)
    }

    /// Runs a transfer; the client's address, and what arrived at the other end.
    pub(crate) fn transfer(&self, client: &Namespace, job: &Job) -> Result<(SocketAddr, Arrived)> {
        let socket = client.run_in(|| socket::toward(job.target))?;
        socket
            .connect_timeout(&job.target.into(), HANG)
            .context("connect")?;
        let mut stream = TcpStream::from(socket);
        choose(&stream, job.congestion)?;
        let local = stream.local_addr()?;
        bound(&stream)?;
        let mut request = [0; REQUEST_BYTES];
        request[6] = job.is_paced.into();
        request[7] = job.uploads.into();
        request[8..].copy_from_slice(&job.bytes.to_be_bytes());
        stream.write_all(&request).context("send the request")?;
        if !job.uploads {
            return Ok((local, receive(&mut stream, job.bytes)));
        }
        let sent = send(&mut stream, job.bytes, job.is_paced)
            .and_then(|()| Ok(stream.read(&mut request)?));
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = match uploads.remove(&local) {
            // The server's finding comes first: it names the byte.
            Some((trace, received)) => (trace, received.and_then(|()| sent.map(drop))),
            None => {
                let unchecked = || Err(anyhow!("the server has not checked it"));
                (Trace::default(), sent.and_then(|_| unchecked()))
            }
        };
        Ok((local, arrived))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sets the congestion control of a connection that is open: that of its route replaces what was set before.
fn choose(stream: &TcpStream, congestion: &str) -> io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_congestion(congestion.as_bytes())
}

fn bound(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HANG))?;
    stream.set_write_timeout(Some(HANG))
}

fn serve(
    mut stream: TcpStream,
    peer: SocketAddr,
    congestion: &str,
    uploads: &Uploads,
) -> Result<()> {
    choose(&stream, congestion)?;
    bound(&stream)?;
    let mut request = [0; REQUEST_BYTES];
    stream.read_exact(&mut request)?;
    let bytes = request[8..]
        .iter()
        .fold(0, |n, &byte| n << 8 | u64::from(byte));
    if request[7] == 0 {
        return send(&mut stream, bytes, request[6] != 0);
    }
    let arrived = receive(&mut stream, bytes);
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let mut uploads = uploads.lock().unwrap_or_else(PoisonError::into_inner);
    // Before the stream is closed, for which the client waits.
    uploads.insert(peer, arrived);
    Ok(())
}

/// Sends so many bytes of the pattern, and a FIN.
fn send(stream: &mut TcpStream, bytes: u64, is_paced: bool) -> Result<()> {
    if is_paced {
        sys::set_pacing_rate(stream, u32::try_from(bytes / LASTS)?)?;
    }
    let mut at = 0;
    while at < bytes {
        let part = content::part(at, (bytes - at).min(CHUNK as u64));
        stream.write_all(part).context("write")?;
        at += part.len() as u64;
    }
    stream.shutdown(Shutdown::Write).context("close")
}

/// Receives so many bytes of the pattern, and a FIN.
fn receive(stream: &mut TcpStream, bytes: u64) -> Arrived {
    let mut trace = Trace::default();
    let done = receive_into(stream, bytes, &mut trace);
    (trace, done)
}

fn receive_into(stream: &mut TcpStream, bytes: u64, trace: &mut Trace) -> Result<()> {
    let (mut at, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        let part = stream.read(&mut buffer).context("read")?;
        if part == 0 {
            ensure!(at == bytes, "{at} bytes came instead of {bytes}");
            return Ok(());
        }
        ensure!(
            content::matches(at, &buffer[..part]),
            "wrong content behind byte {at}"
        );
        at += part as u64;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        trace.0.push((now.as_secs_f64(), at));
    }
}

impl Trace {
    /// Bytes that had arrived at a time.
    fn bytes_at(&self, time: f64) -> u64 {
        let behind = self.0.partition_point(|(at, _)| *at <= time);
        behind.checked_sub(1).map_or(0, |last| self.0[last].1)
    }

    /// Mbit/s between two times; `None` if the transfer did not last as long.
    pub(crate) fn rate(&self, from: f64, to: f64) -> Option<f64> {
        let (first, last) = (self.0.first()?.0, self.0.last()?.0);
        let bytes = self.bytes_at(to).saturating_sub(self.bytes_at(from));
        (first <= from && to <= last).then(|| bytes as f64 * 8.0 / 1e6 / (to - from))
    }

    /// The longest time without a byte that lies in a span or touches it, in seconds.
    pub(crate) fn longest_gap(&self, from: f64, to: f64) -> Option<f64> {
        let pairs = self.0.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let within = pairs.filter(|(before, after)| *after >= from && *before <= to);
        within
            .map(|(before, after)| after - before)
            .max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_gaps() {
        let trace = Trace(vec![
            (10.0, 0),
            (10.5, 1_000_000),
            (12.0, 2_000_000),
            (12.1, 3_000_000),
        ]);
        assert_eq!(trace.rate(10.0, 12.0), Some(8.0));
        assert_eq!(trace.rate(10.0, 13.0), None, "it ended before");
        assert_eq!(trace.rate(9.0, 11.0), None, "it began later");
        assert_eq!(trace.longest_gap(10.6, 10.7), Some(1.5));
        assert_eq!(trace.longest_gap(13.0, 14.0), None);
    }
}
