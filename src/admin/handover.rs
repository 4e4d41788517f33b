// SPDX-License-Identifier: Apache-2.0
//! Hands the node's place over to a successor on request.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context, ensure};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::control::Control;
use crate::api::State;
use crate::upgrade::give::{Giver, Listener, Replacing, Successor};
use crate::upgrade::{Descriptor, Offered};

/// Handles one successor after the other, until one has taken over.
pub(super) async fn hand_over(listener: AsyncFd<Listener>, control: Arc<Control>) {
    while let Some(successor) = next(&listener).await {
        let admitted = tokio::select! {
            admitted = admit(successor, &control) => admitted,
            () = refuse_others(&listener) => return,
        };
        match admitted {
            Ok(replacing) => return replacing.finish(listener.into_inner()),
            // The loop goes on: the node still has its place.
            Err(error) => control.node.log().error(
                "the node was not replaced",
                &[("error", &format!("{error:#}"))],
            ),
        }
    }
}

/// The next process that requests the place.
async fn next(listener: &AsyncFd<Listener>) -> Option<Successor> {
    while let Ok(mut ready) = listener.readable().await {
        if let Some(successor) = listener.get_ref().accept() {
            return Some(successor);
        }
        ready.clear_ready();
    }
    None
}

/// Refuses all further processes, each on a separate thread: it has to speak first.
async fn refuse_others(listener: &AsyncFd<Listener>) {
    while let Some(other) = next(listener).await {
        let thread = std::thread::Builder::new().name("posthaste-other".into());
        // Without a thread it reads that the connection has ended.
        let _ = thread.stack_size(256 << 10).spawn(|| other.refuse());
    }
}

/// On a separate thread: a successor takes time to start.
async fn admit(successor: Successor, control: &Arc<Control>) -> anyhow::Result<Replacing> {
    let (done, outcome) = oneshot::channel();
    let control = Arc::clone(control);
    let work = move || {
        let admitted = successor.admit(&*control, control.node.claim());
        // The receiver waits for it.
        let _ = done.send(admitted);
    };
    let thread = std::thread::Builder::new().name("posthaste-next".into());
    thread
        .stack_size(256 << 10)
        .spawn(work)
        .context("start a thread to hand over")?;
    outcome.await.context("handing over ended with a panic")?
}

impl Giver for Control {
    fn ensure_replaceable(&self) -> anyhow::Result<()> {
        let state = self.state();
        ensure!(
            state == State::Ready,
            "the running node is {}",
            state.word()
        );
        Ok(())
    }

    fn offer(&self) -> Offered {
        let config = self.node.configuration();
        let place = self.place();
        Offered {
            transparent: config.transparent,
            predecessors: self.node.predecessors().live_nodes(),
            aside: place.map(|place| place.aside()).unwrap_or_default(),
        }
    }

    fn descriptors(&self) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>> {
        self.node.sockets()
    }

    fn set_followed(&self, followed: bool) -> anyhow::Result<()> {
        self.node.set_followed(followed)
    }

    fn replace(&self, successor: i32) {
        let deadline = self.node.configuration().node.upgrade_timeout;
        // Set before workers can end, which is no failure then.
        self.end(State::Replaced, deadline);
        let log = self.node.log();
        if let Some(Err(error)) = self.place().map(|place| place.give_up()) {
            log.warn(
                "this node has no admin socket any more",
                &[("error", &error)],
            );
        }
        // The successor listens at a duplicate of the same socket, and scrapes must reach it alone.
        self.close_metrics();
        self.node.replace(deadline);
        let within = deadline.as_secs_f64();
        log.info(
            "the node was replaced",
            &[("by", &successor), ("deadline_s", &within)],
        );
        self.draining.notify_one();
    }
}
