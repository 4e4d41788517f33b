// SPDX-License-Identifier: Apache-2.0
//! The rule as quinn-proto calls it.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};

use super::{Control, INITIAL_WINDOW, Load, Path};

/// An instant, and what the host's clock showed then: connections of hosts whose clocks agree measure their
/// round-trip times together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) epoch: Instant,
    pub(crate) at_epoch: Duration,
}

impl Clock {
    fn time(&self, at: Instant) -> Duration {
        self.at_epoch + at.saturating_duration_since(self.epoch)
    }
}

/// Makes the congestion control of a connection over a path.
#[derive(Clone, Debug)]
pub(crate) struct ControlFactory {
    pub(crate) clock: Clock,
    pub(crate) path: Arc<Path>,
}

impl ControllerFactory for ControlFactory {
    fn build(self: Arc<Self>, _now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Adapter {
            clock: self.clock,
            control: Control::new(mtu.into(), &self.path),
            load: Arc::default(),
        })
    }
}

/// What the control of a connection shows. There is no shorter way from the trait to its type.
pub(crate) fn load_of(controller: &dyn Controller) -> Arc<Load> {
    let adapter = controller.clone_box().into_any().downcast::<Adapter>();
    adapter.map(|adapter| adapter.load).unwrap_or_default()
}

#[derive(Clone, Debug)]
struct Adapter {
    clock: Clock,
    control: Control,
    load: Arc<Load>,
}

impl Controller for Adapter {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last: u64) {
        let now = self.clock.time(now);
        self.control.on_sent(now, bytes);
        self.load.on_sent(bytes);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        let (now, sent) = (self.clock.time(now), self.clock.time(sent));
        self.control.on_ack(now, sent, bytes);
        self.load.on_acked(bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _: Option<u64>) {
        let now = self.clock.time(now);
        self.control.on_acks(now, in_flight, app_limited);
        self.load
            .on_acks(in_flight, app_limited, self.control.window());
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        is_persistent: bool,
        lost: u64,
    ) {
        self.control.on_loss(lost, is_persistent);
        self.load.on_loss(self.control.window());
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.control.mtu = mtu.into();
    }

    fn window(&self) -> u64 {
        // quinn-proto subjects no ACK to the window.
        if self.load.is_held() {
            return 0;
        }
        if self.load.is_probe() {
            return u64::MAX;
        }
        self.control.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
