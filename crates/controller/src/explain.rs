// SPDX-License-Identifier: Apache-2.0
//! Which routes nodes receive, and why, in words.

use posthaste_control::message::{NodeNumber, RouteUpdate};
use posthaste_control::registry::Registry;
use posthaste_control::rib::Rib;
use posthaste_control::route_table::RouteTable;
use posthaste_plan::fronts::Limits;
use posthaste_plan::planner::Transfer;
use posthaste_plan::{Matrix, Planner};

use tokio::time::{Duration, Instant, timeout_at};

use super::server::{Inner, Server};
use crate::documents::{Choice, Explanation, Route, Routes};

/// How long a request waits for a plan that is being made.
const PLANNING_MAX: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// A name in the request is not known.
    Unknown(String),
    /// A thread has the RIB, to write a plan or a repair to it.
    Planning,
    /// There is no plan yet.
    Later(String),
}

/// Looks, and waits as long as a thread has the RIB: a plan of a large fleet takes seconds.
pub(super) async fn looked<T>(
    server: &Server,
    look: impl Fn(&Server) -> Result<T, Unanswered>,
) -> Result<T, Unanswered> {
    let deadline = Instant::now() + PLANNING_MAX;
    loop {
        // Made before the look, so that a RIB that comes back between the two is not missed.
        let returned = server.rib_returned.notified();
        let answer = look(server);
        let is_planning = matches!(answer, Err(Unanswered::Planning));
        if !is_planning || timeout_at(deadline, returned).await.is_err() {
            return answer;
        }
    }
}

/// The ways from a node to all others, for the largest transfers over the shortest access links.
pub(super) fn routes(server: &Server, from: &str) -> Result<Routes, Unanswered> {
    let inner = server.lock();
    let number = inner.number(from).map_err(Unanswered::Unknown)?;
    let update = update(&inner, number)?;
    let held = held(number, &update)?;
    let bytes = update.sizes.last().copied().unwrap_or(0);
    let class = held.class(bytes, 0).unwrap_or(0);
    let routes = update.routes.iter().map(|routes| {
        let chains = held.routes(routes.egress, class);
        let nodes = chains.map(|between| whole(number, between, routes.egress));
        Route {
            to: inner.name(routes.egress),
            chains: nodes.map(|nodes| names(&inner, &nodes)).collect(),
        }
    });
    Ok(Routes {
        from: from.to_owned(),
        plan_version: update.plan_version,
        routes: routes.collect(),
    })
}

/// The ways from a node to another for a transfer of bytes over an access link.
pub(super) fn pair(
    server: &Server,
    (from, to): (&str, &str),
    (bytes, access_us): (u64, u32),
) -> Result<Explanation, Unanswered> {
    let inner = server.lock();
    let first = inner.number(from).map_err(Unanswered::Unknown)?;
    let last = inner.number(to).map_err(Unanswered::Unknown)?;
    if first == last {
        return Err(Unanswered::Unknown("from and to are the same node".into()));
    }
    let update = update(&inner, first)?;
    let held = held(first, &update)?;
    let class = held.class(bytes, access_us).unwrap_or(0);
    let (class_bytes, class_access_us) = class_bounds(&update, class);
    let transfer = Transfer {
        bytes: class_bytes,
        access_us: class_access_us,
    };
    let rib = rib(&inner)?;
    let registry = &inner.state.registry;
    let time = |nodes: &[NodeNumber]| time_us(rib, registry, nodes, transfer);
    let routes = held.routes(last, class).map(|between| {
        let nodes = whole(first, between, last);
        Choice {
            time_us: time(&nodes),
            nodes: names(&inner, &nodes),
        }
    });
    let routes: Vec<Choice> = routes.collect();
    let direct_us = time(&[first, last]);
    Ok(Explanation {
        from: from.to_owned(),
        to: to.to_owned(),
        bytes,
        access_us,
        plan_version: update.plan_version,
        class_bytes,
        class_access_us,
        why: why(&inner, (first, last), &routes, direct_us),
        routes,
        direct_us,
    })
}

fn rib(inner: &Inner) -> Result<&Rib, Unanswered> {
    inner.state.rib().ok_or(Unanswered::Planning)
}

fn update(inner: &Inner, node: NodeNumber) -> Result<RouteUpdate, Unanswered> {
    let update = rib(inner)?.update(node, None);
    update.ok_or_else(|| Unanswered::Later("there is no plan since the start yet".into()))
}

/// The rows as the node itself would have them.
fn held(node: NodeNumber, update: &RouteUpdate) -> Result<RouteTable, Unanswered> {
    // By the node's own code: an explanation must not differ from what the node does.
    let mut held = RouteTable::new(node);
    let applied = held.apply(update);
    applied.map_err(|error| Unanswered::Later(format!("the rows do not fit: {error}")))?;
    Ok(held)
}

fn class_bounds(update: &RouteUpdate, class: usize) -> (u64, u32) {
    let access = update.access_us.len().max(1);
    let size = update.sizes.get(class / access).copied();
    let access_us = update.access_us.get(class % access).copied();
    (size.unwrap_or(0), access_us.unwrap_or(0))
}

/// All nodes of a chain.
fn whole(first: NodeNumber, between: &[NodeNumber], last: NodeNumber) -> Vec<NodeNumber> {
    [&[first], between, &[last]].concat()
}

fn names(inner: &Inner, nodes: &[NodeNumber]) -> Vec<String> {
    nodes.iter().map(|node| inner.name(*node)).collect()
}

/// How long a transfer over a chain takes, as links are now; nothing if one is not there.
fn time_us(
    rib: &Rib,
    registry: &Registry,
    nodes: &[NodeNumber],
    transfer: Transfer,
) -> Option<u64> {
    // Of the links of this chain alone: the others do not matter for its time.
    let mut matrix = Matrix::new(nodes.len()).ok()?;
    for (place, ends) in nodes.windows(2).enumerate() {
        let link = registry.agreed(ends[0], ends[1]).link?;
        matrix.set_both(place, place + 1, Some(link)).ok()?;
    }
    let chain: Vec<u16> = (0..u16::try_from(nodes.len()).ok()?).collect();
    let planner = Planner::new(&matrix, rib.settings().model, Limits::default());
    planner.time_us(&chain, transfer)
}

fn why(
    inner: &Inner,
    (first, last): (NodeNumber, NodeNumber),
    routes: &[Choice],
    direct_us: Option<u64>,
) -> String {
    let registry = &inner.state.registry;
    // A node that is away has no links, which would be the wrong reason to give.
    let absent = [first, last]
        .into_iter()
        .find(|node| !registry.nodes().contains_key(node));
    if let Some(absent) = absent {
        return format!("{} is not there", inner.name(absent));
    }
    let margin = inner.config.plan.margin_percent;
    match (routes.first(), direct_us) {
        (None, _) => "no chain of links that are up leads there".into(),
        (Some(best), Some(_)) if best.nodes.len() == 2 => {
            format!("no chain is {margin} % faster than the hop without nodes between")
        }
        (Some(_), None) => "there is no link without nodes between".into(),
        (Some(best), Some(direct)) => match best.time_us {
            None => "a link of this chain went; the next plan has another".into(),
            Some(time) if time * 100 <= direct * u64::from(100 - margin.min(100)) => {
                let saved = 100 - time * 100 / direct.max(1);
                format!("it takes {saved} % less time than the hop without nodes between")
            }
            Some(_) => "it is in use, and nothing is so much better that it would give way".into(),
        },
    }
}
