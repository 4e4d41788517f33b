// SPDX-License-Identifier: Apache-2.0
//! What a node and a controller have in common as daemons: the log, capabilities, threads,
//! notifications to the service manager, an HTTP server with bounds, pages of metrics.

pub mod file;
pub mod http;
pub mod journal;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod privileges;
pub mod thread;
