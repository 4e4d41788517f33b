// SPDX-License-Identifier: Apache-2.0
//! Web servers of two kinds, both nginx, and a client that compares every byte.
//!
//! The *origin* has the objects. The *reverse proxy* represents those of content networks near
//! clients: it answers for the origin, over connections to it that it keeps open (HTTP/1.1). Like
//! the hosts of nodes, those of both keep grown windows over idle times and have large buffers. The
//! reverse proxy forwards received bytes at once, and writes to no disk.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::netns::Namespace;
use crate::nginx::{self, Nginx, listen, object, object_name};
use crate::scratch::Scratch;
use crate::socket;
use crate::transfer::{Timing, exchange};

/// No header of an answer is longer.
const HEADER_BYTES_MAX: usize = 64 * 1024;

/// The settings of both.
const HTTP: &str = "access_log off;
    tcp_nodelay on;
    keepalive_timeout 600s;
    keepalive_requests 100000;
";

/// An origin at some ports, with an object of each size in KB.
pub(crate) fn origin(host: &Namespace, ports: &[u16], sizes: &[u64]) -> Result<Nginx> {
    nginx::serve_objects(host, HTTP, ports, sizes)
}

/// A reverse proxy for origins: each port, and the origin behind it.
pub(crate) fn reverse_proxy(host: &Namespace, origins: &[(u16, SocketAddr)]) -> Result<Nginx> {
    let servers = origins.iter().map(|(port, origin)| {
        let listen = listen(&[*port]);
        format!(
            "upstream origin{port} {{ server {origin}; keepalive 8; }}\n\
             server {{\n{listen}location / {{\n\
             proxy_pass http://origin{port};\nproxy_http_version 1.1;\n\
             proxy_set_header Connection \"\";\nproxy_buffers 64 16k;\n\
             proxy_max_temp_file_size 0;\n}}\n}}\n"
        )
    });
    let http = format!("{HTTP}{}", servers.collect::<String>());
    Nginx::start(host, Scratch::new()?, &http)
}

/// Fetches the object of `size` KB over a new connection and compares it with the original.
pub(crate) fn fetch(
    from: &Namespace,
    server: SocketAddr,
    size: u64,
    patience: Duration,
) -> Result<Timing> {
    let name = object_name(size);
    let request = format!("GET /{name} HTTP/1.1\r\nHost: origin\r\nConnection: close\r\n\r\n");
    let expected = object(size);
    let mut answer = Vec::with_capacity(expected.len() + HEADER_BYTES_MAX);
    let take = |part: &[u8]| {
        ensure!(
            // nginx ends a connection early when it fails: that must not look like a short object.
            !part.is_empty(),
            "the answer ended after {} bytes",
            answer.len()
        );
        answer.extend_from_slice(part);
        let whole = body(&answer)?.filter(|body| body.len() >= expected.len());
        ensure!(
            whole.is_none_or(|body| body == expected),
            "the object did not arrive as it is"
        );
        Ok(whole.is_some())
    };
    // The socket is made inside, as it belongs to the namespace of the thread that makes it.
    let fetch = || {
        exchange(
            socket::toward(server)?,
            server,
            request.as_bytes(),
            patience,
            take,
        )
    };
    let fetched = from.run_in(fetch);
    fetched.with_context(|| format!("fetch {size} KB from {server}"))
}

/// The received part of an object; `None` until the header is complete.
fn body(answer: &[u8]) -> Result<Option<&[u8]>> {
    let end = answer
        .windows(4)
        .take(HEADER_BYTES_MAX)
        .position(|four| four == b"\r\n\r\n");
    let Some(end) = end else { return Ok(None) };
    // A reverse proxy that cannot reach its origin answers, too, and quickly.
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        bail!("{}", String::from_utf8_lossy(&answer[..end]));
    }
    Ok(Some(&answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_after_head() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nA: b\r\n").unwrap(), None);
        let whole = body(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nxy").unwrap();
        assert_eq!(whole, Some(&b"xy"[..]));
        assert!(body(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").is_err());
    }
}
