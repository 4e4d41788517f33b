// SPDX-License-Identifier: Apache-2.0
//! A node as its control thread sees it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, bail};
use posthaste_bpf::{PacketFlow, PacketKnowledge};
use posthaste_relay::control::{Command, Handle};
use posthaste_relay::flow::Flow;
use posthaste_relay::sys;

use super::{Node, set_peer_starts, set_rate_limits, set_syn_options, uses_own_congestion};
use crate::admin::Operations;
use crate::api::observed::Observed;
use crate::api::{self, Interface, ReloadReport, control_client::Follow};
use crate::chains::Followed;
use crate::host::{self, Claim, HostChange, LinkEvent};
use crate::intercept;
use crate::placement::cpu_times;
use crate::upgrade::{Descriptor, Kind, Predecessors};
use posthaste_config::Config;
use posthaste_daemon::log::Log;
use posthaste_daemon::thread::lock;
use posthaste_measure::documents::Links;

/// How long a worker may take to hand over its listeners.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

impl Operations for Node {
    fn workers(&self) -> &[Handle] {
        &self.workers
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn config_file(&self) -> Option<String> {
        self.path.as_ref().map(|path| path.display().to_string())
    }

    fn interfaces(&self) -> Vec<Interface> {
        let attached = self.attached().into_iter().map(|interface| Interface {
            name: interface.name,
            index: interface.index,
            attached: true,
            hold: if interface.ends_with_process {
                "tcx"
            } else {
                "clsact"
            }
            .into(),
        });
        let mut all: Vec<Interface> = attached.collect();
        for name in &self.config().transparent.interfaces {
            if !all.iter().any(|interface| interface.name == *name) {
                all.push(Interface::absent(name));
            }
        }
        all
    }

    fn guard(&self) -> api::Guard {
        Self::guard(self).state()
    }

    fn look_after_guard(&self) {
        Self::guard(self).look_after(&self.log);
    }

    fn place_flows(&self) {
        let Some(placement) = &self.placement else {
            return;
        };
        let mut placement = lock(placement);
        let opened = |worker: &Handle| worker.counters.relays_opened.read();
        let changed = placement.look(self.workers.iter().map(opened).collect(), cpu_times);
        let Some(worker) = changed else { return };
        let placed = self.redirect().place(worker, placement.of(worker));
        if let Err(error) = placed {
            let message = "could not give flows to another worker";
            self.log.warn(message, &[("error", &error)]);
        }
    }

    fn release_packets(&self) {
        if self.predecessors().live().next().is_none() {
            self.redirect().release_packets();
        }
    }

    fn redirect_stats(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.redirect().stats()
    }

    fn configuration(&self) -> Config {
        self.config().clone()
    }

    fn links(&self) -> Links {
        self.measure.status(&self.config())
    }

    fn follow(&self) -> Option<Follow> {
        self.following.status()
    }

    fn followed(&self, destination: IpAddr) -> Option<Followed> {
        Some(Followed {
            plan: self.following.status()?.plan,
            whose: self.whose(destination),
            experience: self.following.experience(destination),
        })
    }

    fn forget_key(&self, name: &str) -> Option<bool> {
        self.following.forget_key(name)
    }

    fn drain_timeout(&self) -> Duration {
        self.config().node.drain_timeout
    }

    fn reload(&self) -> anyhow::Result<ReloadReport> {
        let Some(path) = &self.path else {
            bail!("there is no configuration file to read: the node was started without one");
        };
        // Held until the end: a plan that arrives meanwhile must extend the new file, not the
        // former one.
        let plan_overlay = lock(&self.plan_overlay);
        let (file, needs_restart) = lock(&self.file).adopt(Config::load(path)?);
        let next = match &*plan_overlay {
            Some(plan_overlay) => plan_overlay.extend(&file),
            None => file.clone(),
        };
        // The first socket of a node that did without needs it.
        host::install(&next)?;
        // Programs first. Until a worker has the policy below, it finds no rule list for the new
        // generation and classifies the flow itself (`Rules::for_event`).
        let generation = intercept::set_rules(&mut self.redirect(), &next)?;
        self.report_packet_path();
        set_peer_starts(&mut self.redirect(), &next.policy, &self.log)?;
        set_rate_limits(self.congestion.as_ref(), &next.policy, &self.log)?;
        set_syn_options(&mut self.redirect(), &next.policy, &self.log)?;
        self.redirect().set_observing(intercept::observing(&next))?;
        self.redirect().set_patience(intercept::patience(&next))?;
        let policy = Arc::new(next.policy.clone());
        for worker in &self.workers {
            worker.send(Command::Policy {
                policy: Arc::clone(&policy),
                generation,
            });
        }
        self.measure.configure(&next, &self.log)?;
        self.log.log_connections(next.node.log_connections);
        if uses_own_congestion(&next) && self.congestion.is_none() {
            // Registering needs a privilege that a running node does not have.
            let message = "congestion = \"posthaste\" takes effect at start only: bbr until then";
            self.log.info(message, &[]);
        }
        for warning in &next.warnings {
            self.log.warn(warning, &[]);
        }
        *lock(&self.file) = file;
        let report = ReloadReport {
            rules: next.policy.rules.len(),
            warnings: next.warnings.clone(),
            needs_restart,
        };
        *self.config() = next;
        Ok(report)
    }

    fn drain(&self, deadline: Duration) {
        for worker in &self.workers {
            worker.send(Command::Drain { deadline });
        }
        // systemd does not end them (KillMode=process), so the node that is stopped has to (0019).
        self.predecessors().drain(deadline);
    }

    fn on_links(&self, events: &[LinkEvent]) {
        // `Unknown` means that the kernel dropped notifications, which may include that of the
        // rule.
        let lost = [LinkEvent::RuleGone, LinkEvent::Unknown];
        if events.iter().any(|event| lost.contains(event)) {
            self.restore_routing();
        }
        // Events may be outdated: only the current state matters.
        match host::links() {
            Ok(links) => self.update_interfaces(&links),
            Err(error) => self
                .log
                .warn("could not list the interfaces", &[("error", &error)]),
        }
    }

    fn observed(&self, most: usize) -> anyhow::Result<Observed> {
        let redirect = self.redirect();
        Ok(Observed::of(
            // One more than is shown, to detect whether there are more.
            &redirect.profiles(most + 1)?,
            most,
            sys::monotonic(),
        ))
    }

    fn packet_flows(&self, most: usize) -> anyhow::Result<Vec<PacketFlow>> {
        Ok(self.redirect().packet_flows(most)?)
    }

    fn packet_knowledge(&self, flow: &Flow) -> anyhow::Result<Option<PacketKnowledge>> {
        Ok(self.redirect().packet_knowledge(flow, sys::monotonic())?)
    }

    fn packet_path_trouble(&self) -> Option<String> {
        self.redirect().packet_path_trouble().map(str::to_owned)
    }

    fn is_bypassed(&self, flow: &Flow) -> anyhow::Result<bool> {
        Ok(self.redirect().is_bypassed(flow)?)
    }

    fn is_blocked(&self) -> bool {
        let until = self.redirect().blocked_until();
        until.is_ok_and(|until| sys::monotonic() < until)
    }

    fn on_change(&self, change: HostChange) {
        let what = "the host changed: destinations are observed again";
        self.log.info(what, &[("change", &change.word())]);
        self.forget_profiles();
    }

    fn predecessors(&self) -> &Predecessors {
        &self.inheritance.predecessors
    }

    fn claim(&self) -> &Claim {
        Self::guard(self).claim()
    }

    fn sockets(&self) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>> {
        let mut all = Vec::new();
        for (descriptor, socket) in &*lock(&self.inheritance.shared) {
            let socket = socket.try_clone().context("share a socket")?;
            all.push((*descriptor, socket));
        }
        for worker in &self.workers {
            let (answer, answers) = channel();
            worker.send(Command::Listeners { answer });
            let listeners = answers.recv_timeout(ANSWER_TIME_MAX);
            let listeners = listeners.context("a worker does not answer")?;
            all.extend(
                listeners
                    .context("share the listeners")?
                    .into_iter()
                    .map(|shared| {
                        let kind = if shared.fixed {
                            Kind::Fixed
                        } else {
                            Kind::Explicit
                        };
                        let address = shared.address;
                        (Descriptor { kind, address }, shared.socket)
                    }),
            );
        }
        Ok(all)
    }

    fn set_followed(&self, followed: bool) -> anyhow::Result<()> {
        Ok(self.redirect().set_followed(followed)?)
    }

    fn replace(&self, deadline: Duration) {
        // Relaxed: the flag guards no data, and a late reader attaches one interface too many at
        // worst.
        self.inheritance.replaced.store(true, Ordering::Relaxed);
        self.redirect().step_back();
        for worker in &self.workers {
            worker.send(Command::Replace { deadline });
        }
        // The controller knows a node by its key: two streams with one key would end each other.
        self.following.stop();
        self.measure.stop();
        lock(&self.inheritance.shared).clear();
    }
}

impl Node {
    /// Installs rule and route again if another program removed them: without the rule, every
    /// packet of a relay is dropped, since ip_forward() drops what early demultiplexing assigned to
    /// a local socket.
    fn restore_routing(&self) {
        match host::install(&self.config()) {
            Ok(report) if report.done.is_empty() => {}
            Ok(report) => {
                let done = report.done.join(", ");
                self.log.warn(
                    "our routing rule or route was removed",
                    &[("restored", &done)],
                );
            }
            Err(error) => {
                self.log
                    .error("could not restore our routing", &[("error", &error)]);
            }
        }
    }
}
