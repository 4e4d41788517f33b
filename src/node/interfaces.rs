// SPDX-License-Identifier: Apache-2.0
//! Which interfaces the node intercepts on.

use anyhow::bail;
use std::collections::HashSet;

use posthaste_bpf::{Device, LinkLayer};

use super::Node;
use crate::host::{self, Framing, Link};

/// An interface that the node intercepts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    /// Its index.
    pub(crate) index: u32,
    /// Its name, if it still has one.
    pub(crate) name: String,
    /// Whether the attachment ends with the process (TCX link) or stays behind after a crash,
    /// passing every packet (clsact filter, kernels before 6.6).
    pub(crate) ends_with_process: bool,
}

impl Node {
    /// Attaches to every configured interface that is not attached yet, and detaches from those
    /// that are gone.
    pub(crate) fn attach_all(&self, links: &[Link]) -> anyhow::Result<()> {
        // At the start an unknown name is taken for a mistake; later, interfaces come and go.
        if let Some(missing) = self.missing(links) {
            bail!("transparent.interfaces: there is no interface {missing} on this host");
        }
        for gap in host::gaps(&self.config().transparent, links) {
            self.log.warn(&gap.to_string(), &[]);
        }
        self.update_interfaces(links);
        Ok(())
    }

    fn missing(&self, links: &[Link]) -> Option<String> {
        let config = self.config();
        let mut wanted = config.transparent.interfaces.iter();
        wanted
            .find(|name| !links.iter().any(|link| link.name == **name))
            .cloned()
    }

    /// Fails unless every interface is attached that the configuration wants and that can be: a
    /// successor must not see less than its predecessor.
    pub(super) fn ensure_attached(&self, links: &[Link]) -> anyhow::Result<()> {
        let attached: Vec<u32> = self.redirect().attached().map(|(index, _)| index).collect();
        let wanted = links.iter().filter(|link| {
            let framed = !matches!(link.framing, Framing::Other(_));
            framed && !link.is_port() && self.config().watches(&link.name)
        });
        for link in wanted {
            if !attached.contains(&link.index) {
                bail!(
                    "cannot intercept on {}; see the log for the cause",
                    link.name
                );
            }
        }
        Ok(())
    }

    /// Brings the attachments in line with the interfaces there are.
    pub(crate) fn update_interfaces(&self, links: &[Link]) {
        let attached: Vec<u32> = self.redirect().attached().map(|(index, _)| index).collect();
        for index in &attached {
            // A port of a bridge or a bond is no longer intercepted.
            let still = |link: &Link| link.index == *index && !link.is_port();
            if !links.iter().any(still) {
                self.redirect().detach(*index);
                self.log.info("interface removed", &[("ifindex", index)]);
            }
        }
        // New interfaces are left to the successor.
        let links = if self.is_replaced() { &[] } else { links };
        let strict = self.strict_sources();
        for link in links {
            let Some(device) = device(link, &strict) else {
                continue;
            };
            if !attached.contains(&link.index) {
                self.attach(link, device);
            } else if let Err(error) = self.redirect().describe(link.index, device) {
                self.log.warn(
                    "could not watch an interface's settings",
                    &[("interface", &link.name), ("error", &error)],
                );
            }
        }
    }

    /// The interfaces that have a strict reverse path filter; none if the kernel does not report
    /// them.
    fn strict_sources(&self) -> HashSet<u32> {
        host::strict_sources().unwrap_or_else(|error| {
            self.log
                .warn("could not read reverse path filters", &[("error", &error)]);
            HashSet::new()
        })
    }

    fn attach(&self, link: &Link, device: Device) {
        if link.is_port() || !self.config().watches(&link.name) {
            return;
        }
        let name = &link.name;
        match self.redirect().attach(link.index, device) {
            Ok(()) => self.log.info("interface attached", &[("interface", name)]),
            Err(error) => {
                let fields = [("interface", name as _), ("error", &error as _)];
                self.log.warn("cannot intercept", &fields);
            }
        }
        self.report_packet_path();
    }

    /// The interfaces the node intercepts on now.
    pub(crate) fn attached(&self) -> Vec<Attached> {
        // Without the list only the names are missing.
        let links = host::links().unwrap_or_default();
        let redirect = self.redirect();
        let each = redirect.attached().map(|(index, ends_with_process)| {
            let link = links.iter().find(|link| link.index == index);
            Attached {
                index,
                name: link.map(|link| link.name.clone()).unwrap_or_default(),
                ends_with_process,
            }
        });
        each.collect()
    }
}

/// The description of an interface for the programs; `None` if they cannot parse its frames.
fn device(link: &Link, strict: &HashSet<u32>) -> Option<Device> {
    let layer = match link.framing {
        Framing::Ethernet => LinkLayer::Ethernet,
        Framing::Ip => LinkLayer::None,
        Framing::Other(_) => return None,
    };
    Some(Device {
        layer,
        strict_source: strict.contains(&link.index),
        // With br_netfilter, conntrack sees what a bridge carries before tc does.
        tracked: link.bridge.is_some_and(|own| own || host::bridges_filter()),
        paced: link.paced,
    })
}
