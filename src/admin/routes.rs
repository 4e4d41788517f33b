// SPDX-License-Identifier: Apache-2.0
//! The routes of the admin API and of the metrics address.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use posthaste_daemon::http::{answer, health, metrics, not_found, refuse};
use posthaste_relay::control::RelayId;
use serde::Deserialize;

use super::control::Control;
use super::fleet;
use super::metrics::render;
use crate::api::{Draining, State};
use crate::chains::{self, Question};

/// Relays listed when the request has no limit.
const LIST_LIMIT: usize = 1000;

type Node = Shared<Arc<Control>>;

/// The routes of the admin socket.
pub(super) fn admin(control: Arc<Control>) -> Router {
    Router::new()
        .route("/status", get(show_status))
        .route("/relays", get(list_relays))
        .route("/relays/{id}", get(show_relay).delete(kill_relay))
        .route("/chains", get(list_chains))
        .route("/chains/explain", get(explain_chains))
        .route("/links", get(list_links))
        .route("/observed", get(list_observed))
        .route("/keys/{name}", delete(forget_key))
        .route("/drain", post(drain))
        .route("/reload", post(reload))
        .fallback(not_found)
        .with_state(control)
}

/// The routes of the metrics address.
pub(super) fn observation(control: Arc<Control>) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .fallback(not_found)
        .with_state(control)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    destination: SocketAddr,
    from: Option<IpAddr>,
    bytes: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainQuery {
    timeout_ms: Option<u64>,
}

async fn show_status(Shared(control): Node) -> Response {
    answer(move || Json(control.status())).await
}

async fn list_relays(Shared(control): Node, Query(query): Query<ListQuery>) -> Response {
    let limit = query.limit.unwrap_or(LIST_LIMIT);
    answer(move || document(control.relays(limit))).await
}

async fn show_relay(Shared(control): Node, Path(id): Path<String>) -> Response {
    answer(
        move || match parse_id(&id).and_then(|parsed| fleet::show(control.workers(), parsed)) {
            Some(detail) => Json(detail).into_response(),
            None => no_such_relay(&id),
        },
    )
    .await
}

async fn kill_relay(Shared(control): Node, Path(id): Path<String>) -> Response {
    answer(move || match parse_id(&id) {
        Some(parsed) if fleet::kill(control.workers(), parsed) => {
            StatusCode::NO_CONTENT.into_response()
        }
        _ => no_such_relay(&id),
    })
    .await
}

async fn list_chains(Shared(control): Node) -> Response {
    answer(move || {
        let known = fleet::known(control.workers());
        Json(chains::list(&control.node.configuration(), &known))
    })
    .await
}

async fn explain_chains(Shared(control): Node, Query(query): Query<ExplainQuery>) -> Response {
    answer(move || match Question::new(query.destination, query.from) {
        Ok(question) => document(control.explain(&question.carrying(query.bytes))),
        Err(error) => refuse(StatusCode::BAD_REQUEST, error),
    })
    .await
}

async fn list_links(Shared(control): Node) -> Response {
    answer(move || Json(control.node.links())).await
}

async fn list_observed(Shared(control): Node, Query(query): Query<ListQuery>) -> Response {
    let limit = query.limit.unwrap_or(LIST_LIMIT);
    answer(move || document(control.node.observed(limit))).await
}

/// Accepts the latest key that the controller reported for a node.
async fn forget_key(Shared(control): Node, Path(name): Path<String>) -> Response {
    answer(move || match control.node.forget_key(&name) {
        Some(true) => StatusCode::NO_CONTENT.into_response(),
        Some(false) => refuse(
            StatusCode::NOT_FOUND,
            format!("the controller reports no node \"{name}\""),
        ),
        None => refuse(
            StatusCode::CONFLICT,
            "this node follows no controller, or it does not answer",
        ),
    })
    .await
}

async fn drain(Shared(control): Node, Query(query): Query<DrainQuery>) -> Response {
    answer(move || {
        // Before the drain begins: relays may end at once.
        let relays = control
            .workers()
            .iter()
            .map(|worker| worker.counters.relays.read())
            .sum();
        control.drain(query.timeout_ms.map(Duration::from_millis));
        (StatusCode::ACCEPTED, Json(Draining { relays }))
    })
    .await
}

async fn reload(Shared(control): Node) -> Response {
    answer(move || match control.reload() {
        Ok(report) => Json(report).into_response(),
        Err(error) => refuse(StatusCode::UNPROCESSABLE_ENTITY, format!("{error:#}")),
    })
    .await
}

async fn show_metrics(Shared(control): Node) -> Response {
    answer(move || metrics(render(&control.snapshot()))).await
}

/// The process runs, and every worker's loop runs.
async fn healthy(Shared(control): Node) -> Response {
    answer(move || {
        health(
            fleet::alive(control.workers()),
            "ok\n",
            "a worker does not answer\n",
        )
    })
    .await
}

/// Whether new flows are relayed.
async fn ready(Shared(control): Node) -> Response {
    answer(move || {
        let attached = control
            .node
            .interfaces()
            .iter()
            .any(|interface| interface.attached);
        // Without interception only listeners matter.
        let good = attached || !control.node.configuration().transparent.enabled;
        match control.state() {
            State::Ready => health(good, "ready\n", "attached to no interface\n"),
            State::Draining => health(false, "", "draining\n"),
            State::Replaced => health(false, "", "replaced\n"),
        }
    })
    .await
}

/// A document, or why the node could not make it.
fn document<T: serde::Serialize>(made: anyhow::Result<T>) -> Response {
    match made {
        Ok(document) => Json(document).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")),
    }
}

fn no_such_relay(id: &str) -> Response {
    refuse(StatusCode::NOT_FOUND, format!("there is no relay {id}"))
}

fn parse_id(text: &str) -> Option<RelayId> {
    u64::from_str_radix(text, 16).ok().map(RelayId)
}
