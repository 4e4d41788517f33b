// SPDX-License-Identifier: Apache-2.0
//! The API of a controller: HTTP with JSON, for people and programs that look after nodes.
//!
//! Who has the read token may look, who has the operate token may change things as well. What it answers
//! is described in `openapi.json`, which is served and which a test compares with the routes.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::documents::PrefixTable;
use super::server::Server;
use super::{explain, metrics};
use posthaste_config::controller::Token;
use posthaste_daemon::http::{self, health, not_found, refuse};

mod prefixes;
#[cfg(test)]
mod tests;
pub(super) mod view;

/// The description of what follows.
const OPENAPI: &str = include_str!("api/openapi.json");
/// The most links that one answer lists, and the default. The lock of the state is held meanwhile.
const LINKS_MAX: usize = 10_000;

type Shared = State<Arc<Server>>;

/// Answers every client that connects, within bounds.
pub(super) async fn serve(listener: TcpListener, server: Arc<Server>) {
    let log = server.log.clone();
    // Nobody drops the sender: the task of this is aborted instead.
    let (_open, closing) = watch::channel(());
    if let Err(error) = http::serve(listener, routes(server), closing).await {
        log.error("the API server failed", &[("error", &error)]);
    }
}

fn routes(server: Arc<Server>) -> Router {
    let guarded = Router::new()
        .route("/v1/status", get(show_status))
        .route("/v1/nodes", get(list_nodes))
        .route("/v1/links", get(list_links))
        .route("/v1/plan", get(show_plan))
        .route("/v1/plan/{node}", get(show_routes))
        .route("/v1/explain", get(explain_pair))
        .route("/v1/prefixes", get(list_prefixes).put(put_prefixes))
        .route("/metrics", get(show_metrics))
        // A layer covers the routes before it, and none that are merged later.
        .layer(from_fn_with_state(Arc::clone(&server), check_token));
    Router::new()
        // These show nothing of nodes or plans, so they need no token.
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(is_ready))
        .route("/openapi.json", get(describe))
        .merge(guarded)
        .fallback(not_found)
        .with_state(server)
}

/// Lets in a request whose token permits it.
async fn check_token(State(server): Shared, request: Request, next: Next) -> Response {
    let (read, operate) = {
        let inner = server.lock();
        let api = inner.config.api.as_ref();
        // Cloned: the lock is held neither while words are compared nor for the request.
        let tokens = api.map(|api| (api.read_token.clone(), api.operate_token.clone()));
        tokens.unwrap_or_default()
    };
    let given = bearer(request.headers());
    let has = |token: &Option<Token>| {
        let word = token.as_ref().map(|token| token.word.as_str());
        word.zip(given)
            .is_some_and(|(word, given)| is_same(word, given))
    };
    // Safe methods change nothing (RFC 9110 section 9.2.1).
    let looks = request.method().is_safe();
    if has(&operate) || (looks && (read.is_none() || has(&read))) {
        return next.run(request).await;
    }
    server.counters.requests_denied.add();
    let needed = if looks { "read" } else { "operate" };
    let (code, what) = if !looks && operate.is_none() {
        let what = "nothing can be changed without api.operate_token_file in the configuration";
        (StatusCode::FORBIDDEN, what.to_owned())
    } else if given.is_none() {
        (
            StatusCode::UNAUTHORIZED,
            format!("the {needed} token is needed"),
        )
    } else {
        (
            StatusCode::FORBIDDEN,
            format!("this is not the {needed} token"),
        )
    };
    // A 401 must carry a challenge, and a 403 may (RFC 9110 section 11.6.1).
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    (challenge, refuse(code, what)).into_response()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, word) = value.split_once(' ')?;
    // The case of a scheme does not matter (RFC 9110 section 11.1).
    scheme.eq_ignore_ascii_case("bearer").then(|| word.trim())
}

/// Takes the same time wherever the two differ. Their length is no secret.
fn is_same(one: &str, other: &str) -> bool {
    let pairs = one.bytes().zip(other.bytes());
    let differences = pairs.fold(0, |all, (one, other)| {
        // Keeps the compiler from leaving the loop at the first difference.
        all | std::hint::black_box(one ^ other)
    });
    one.len() == other.len() && differences == 0
}

async fn show_status(State(server): Shared) -> Response {
    Json(view::status(&server)).into_response()
}

async fn list_nodes(State(server): Shared) -> Response {
    Json(view::nodes(&server)).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksQuery {
    node: Option<String>,
    limit: Option<usize>,
}

async fn list_links(State(server): Shared, Query(query): Query<LinksQuery>) -> Response {
    // A client may request fewer, not more.
    let limit = query.limit.unwrap_or(LINKS_MAX).min(LINKS_MAX);
    match view::links(&server, query.node.as_deref(), limit) {
        Ok(links) => Json(links).into_response(),
        Err(error) => refuse(StatusCode::NOT_FOUND, error),
    }
}

async fn show_plan(State(server): Shared) -> Response {
    Json(view::plan(&server)).into_response()
}

async fn show_routes(State(server): Shared, Path(node): Path<String>) -> Response {
    answer(explain::looked(&server, |server| explain::routes(server, &node)).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainQuery {
    from: String,
    to: String,
    bytes: Option<u64>,
    access_us: Option<u32>,
}

async fn explain_pair(State(server): Shared, Query(query): Query<ExplainQuery>) -> Response {
    let transfer = (query.bytes.unwrap_or(0), query.access_us.unwrap_or(0));
    let pair = |server: &Server| explain::pair(server, (&query.from, &query.to), transfer);
    answer(explain::looked(&server, pair).await)
}

fn answer<T: serde::Serialize>(answer: Result<T, explain::Unanswered>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(explain::Unanswered::Unknown(what)) => refuse(StatusCode::NOT_FOUND, what),
        Err(explain::Unanswered::Planning) => {
            let what = "a plan is being made for more than 10 s: try again";
            refuse(StatusCode::SERVICE_UNAVAILABLE, what)
        }
        Err(explain::Unanswered::Later(what)) => refuse(StatusCode::SERVICE_UNAVAILABLE, what),
    }
}

async fn list_prefixes(State(server): Shared) -> Response {
    Json(prefixes::list(&server)).into_response()
}

async fn put_prefixes(State(server): Shared, Json(table): Json<PrefixTable>) -> Response {
    // Off the runtime's thread: the store writes to a disk.
    http::answer(move || match prefixes::put(&server, &table) {
        Ok(count) => {
            server
                .log
                .info("prefix table replaced", &[("prefixes", &count)]);
            Json(prefixes::list(&server)).into_response()
        }
        Err(error) => refuse(StatusCode::UNPROCESSABLE_ENTITY, format!("{error:#}")),
    })
    .await
}

async fn show_metrics(State(server): Shared) -> Response {
    http::metrics(metrics::render(&server))
}

/// There is a plan.
async fn is_ready(State(server): Shared) -> Response {
    let has_plan = server.lock().made.is_some();
    health(has_plan, "ready\n", "no plan since the start\n")
}

async fn describe() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
