// SPDX-License-Identifier: Apache-2.0
//! An HTTP server with bounds on its connections, and the responses that all routes share.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

mod bounded;

use bounded::{Bounded, CONNECTION_TIME_MAX, CONNECTIONS_MAX};

/// The document of every error response.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The reason, for an operator.
    pub error: String,
}

/// Serves connections, within bounds, until the sender of `closing` is dropped; then finishes the requests in progress.
///
/// # Errors
/// The listener fails.
pub async fn serve<L>(
    listener: L,
    routes: Router,
    mut closing: watch::Receiver<()>,
) -> io::Result<()>
where
    L: Listener<Addr: Debug>,
{
    let bounded = Bounded::new(listener, CONNECTIONS_MAX, CONNECTION_TIME_MAX);
    axum::serve(bounded, routes)
        // `changed` fails when the sender is dropped.
        .with_graceful_shutdown(async move { while closing.changed().await.is_ok() {} })
        .await
}

/// An error response with its reason.
pub fn refuse(code: StatusCode, error: impl Into<String>) -> Response {
    let error = error.into();
    (code, Json(Refusal { error })).into_response()
}

/// The response to a path without a route.
pub async fn not_found() -> Response {
    refuse(StatusCode::NOT_FOUND, "there is nothing here")
}

/// The response to a health check: 200 with `yes` if it is `good`, else 503 with `no`.
pub fn health(good: bool, yes: &'static str, no: &'static str) -> Response {
    if good {
        return yes.into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, no).into_response()
}

/// A page in the Prometheus text format, version 0.0.4.
pub fn metrics(page: String) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], page).into_response()
}

/// Runs work that may wait for threads, files or locks off the runtime's thread.
pub async fn answer<T: IntoResponse + Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer.into_response(),
        // The work was cancelled: the runtime ends.
        Err(_) => refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server failed to answer",
        ),
    }
}

/// A time in a document, in whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A time in a document, in whole microseconds.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
