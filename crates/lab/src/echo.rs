// SPDX-License-Identifier: Apache-2.0
//! A server that returns every byte.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::load::conversation::Conversation;
use crate::load::server::Server;
use crate::netns::Namespace;
use crate::socket;

/// Interval of an idle server's check whether to end.
const ATTENTION: Duration = Duration::from_millis(50);

/// A server that echoes, on one port of all addresses. It ends when dropped.
#[derive(Debug)]
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts to serve in `namespace`.
    pub fn start(namespace: &Namespace, port: u16) -> Result<Self> {
        let listen = || socket::listen(port, |socket| socket.set_tcp_nodelay(true));
        let listener = namespace.run_in(listen).context("listen")?;
        // The server of the loads: one thread, so that it starts no thread while a start is timed.
        let mut server = Server::new(listener.into(), Conversation::echoing)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = namespace.spawn(move || {
            // Nothing wakes the thread but connections, so it looks up from time to time.
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = server.turn(Some(ATTENTION)) {
                    return eprintln!("the echo server failed: {error:#}");
                }
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic there has been printed; the clients time out.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
