// SPDX-License-Identifier: Apache-2.0
//! One request to an API of the product, by hand: a GET over a local connection is no reason for a
//! client library.

use std::io::{Read, Write};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The document that the server at the other end of `stream` has for `target`.
pub(crate) fn get(mut stream: impl Read + Write, target: &str) -> Result<Value> {
    write!(
        stream,
        "GET {target} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .with_context(|| format!("read {target}"))?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("{target}: the answer was cut off"))?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{target}: {answer}");
    serde_json::from_str(body).with_context(|| format!("{target}: {body}"))
}
