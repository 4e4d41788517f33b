// SPDX-License-Identifier: Apache-2.0
//! The rows of a plan that a node holds, and how they follow what the controller sends.
//!
//! [`RouteTable::apply`] takes a [`RouteUpdate`] whole or leaves everything as it was: a message that was lost,
//! repeated or overtaken leads to a refusal, never to rows that the controller did not mean. What holds
//! of a message is checked before; the checksum shows whether the outcome is what was meant.

mod check;

use crate::checksum;
use crate::id_map::IdMap;
use crate::message::{NodeNumber, PlanVersion, RouteUpdate, Routes};

/// The most chains in order that there are for a class.
pub const CHOICES_MAX: usize = posthaste_plan::table::CHOICES;

/// Why rows were not taken. The node holds what it held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The plan is not newer than the one that is held. No new rows are needed.
    #[error("plan {} of epoch {} is offered, and {} of epoch {} is held", offered.version, offered.epoch, held.version, held.epoch)]
    Older {
        /// The plan that was offered.
        offered: PlanVersion,
        /// The plan that is held.
        held: PlanVersion,
    },
    /// The rows do not fit, for this reason. All of them are to be requested.
    #[error("{0}")]
    Nack(String),
}

/// The checksum of rows that are the whole, as it belongs in them.
pub fn checksum_of(whole: &RouteUpdate) -> u64 {
    let parts = whole.routes.iter().map(checksum::routes);
    let parts = parts.fold(0, u64::wrapping_add);
    checksum::whole(whole.plan_version, &whole.sizes, &whole.access_us, parts)
}

/// The rows that a node holds.
#[derive(Clone, Debug)]
pub struct RouteTable {
    me: NodeNumber,
    plan_version: Option<PlanVersion>,
    sizes: Vec<u64>,
    access_us: Vec<u32>,
    routes: IdMap<NodeNumber, Routes>,
    /// The sums of all routes.
    parts: u64,
}

impl RouteTable {
    /// A node that holds no plan yet.
    pub fn new(me: NodeNumber) -> Self {
        Self {
            me,
            plan_version: None,
            sizes: Vec::new(),
            access_us: Vec::new(),
            routes: IdMap::default(),
            parts: 0,
        }
    }

    /// Whose rows they are.
    pub fn node(&self) -> NodeNumber {
        self.me
    }

    /// Which plan is held.
    pub fn plan_version(&self) -> Option<PlanVersion> {
        self.plan_version
    }

    /// Follows a newer plan.
    ///
    /// # Errors
    /// The plan is no newer, or the rows do not fit. Everything is as it was.
    pub fn apply(&mut self, update: &RouteUpdate) -> Result<(), Refusal> {
        if let Some(held) = self
            .plan_version
            .filter(|held| *held >= update.plan_version)
        {
            let offered = update.plan_version;
            return Err(Refusal::Older { offered, held });
        }
        let nack = |why| Err(Refusal::Nack(why));
        if let Err(why) = check::alone(self.me, update) {
            return nack(why);
        }
        match update.base {
            None => {
                // Beside the held rows, which stay if the new ones do not fit.
                let mut whole = Self::new(self.me);
                whole.change(update).or_else(nack)?;
                *self = whole;
                Ok(())
            }
            base if base == self.plan_version => self.change(update).or_else(nack),
            Some(base) => nack(format!(
                "changes to plan {} of epoch {}, which is not held",
                base.version, base.epoch
            )),
        }
    }

    /// The class of a transfer of `bytes` over an access link of a round trip of `access_us`
    /// microseconds, as [`posthaste_plan::table::Classes::of`] counts; nothing without a plan.
    pub fn class(&self, bytes: u64, access_us: u32) -> Option<usize> {
        let last = self.sizes.len().checked_sub(1)?;
        let size = self.sizes.partition_point(|largest| *largest < bytes);
        let access = self.access_us.partition_point(|link| *link <= access_us);
        Some(size.min(last) * self.access_us.len() + access.saturating_sub(1))
    }

    /// The largest transfer of each size class, in bytes, ascending.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The chains to an egress for transfers of a class, the best first, at most [`CHOICES_MAX`]: of each
    /// the nodes between here and there, none for the direct hop. Without any chain the flow goes to its
    /// destination from here. Allocates nothing.
    pub fn routes(&self, egress: NodeNumber, class: usize) -> impl Iterator<Item = &[NodeNumber]> {
        let routes = self.routes.get(&egress);
        let choice = routes.and_then(|routes| {
            let choice = *routes.classes.get(class)?;
            routes.choices.get(usize::from(choice))
        });
        let places = choice.map_or(&[][..], Vec::as_slice).iter();
        places.filter_map(move |place| {
            let chain = routes?.chains.get(usize::from(*place))?;
            Some(chain.as_slice())
        })
    }

    /// Every chain of the plan, in no order: its egress and the nodes between here and there.
    pub fn chains(&self) -> impl Iterator<Item = (NodeNumber, &[NodeNumber])> {
        self.routes.values().flat_map(|routes| {
            let chains = routes.chains.iter();
            chains.map(|nodes| (routes.egress, nodes.as_slice()))
        })
    }

    /// How many egresses have routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether no egress has a route.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// All that is held, to be kept or compared; nothing without a plan.
    pub fn whole(&self) -> Option<RouteUpdate> {
        let plan_version = self.plan_version?;
        let mut routes: Vec<Routes> = self.routes.values().cloned().collect();
        routes.sort_unstable_by_key(|routes| routes.egress);
        Some(RouteUpdate {
            plan_version,
            base: None,
            sizes: self.sizes.clone(),
            access_us: self.access_us.clone(),
            routes,
            routes_removed: Vec::new(),
            checksum: checksum::whole(plan_version, &self.sizes, &self.access_us, self.parts),
        })
    }

    /// Makes the changes, if the outcome is what was meant.
    fn change(&mut self, update: &RouteUpdate) -> Result<(), String> {
        // Computed before anything changes, so that a wrong checksum leaves the rows as they were.
        let parts = self.parts_after(update);
        let sum = checksum::whole(update.plan_version, &update.sizes, &update.access_us, parts);
        if sum != update.checksum {
            return Err("the checksum is another".to_owned());
        }
        for egress in &update.routes_removed {
            self.routes.remove(egress);
        }
        let routes = update.routes.iter();
        self.routes
            .extend(routes.map(|routes| (routes.egress, routes.clone())));
        self.sizes.clone_from(&update.sizes);
        self.access_us.clone_from(&update.access_us);
        self.plan_version = Some(update.plan_version);
        self.parts = parts;
        Ok(())
    }

    /// The sums of all routes after the changes.
    fn parts_after(&self, update: &RouteUpdate) -> u64 {
        let changed = update.routes.iter().map(|routes| &routes.egress);
        let before = update.routes_removed.iter().chain(changed);
        let before = before.filter_map(|egress| self.routes.get(egress).map(checksum::routes));
        let after = update.routes.iter().map(checksum::routes);
        let (less, more) = (
            before.fold(0, u64::wrapping_add),
            after.fold(0, u64::wrapping_add),
        );
        self.parts.wrapping_sub(less).wrapping_add(more)
    }
}

#[cfg(test)]
mod tests;
