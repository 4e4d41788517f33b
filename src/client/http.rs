// SPDX-License-Identifier: Apache-2.0
//! One HTTP request, over the admin socket or to a controller. The server is posthaste's own, so
//! this supports only the part of HTTP/1.1 that it sends.

use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use posthaste_daemon::http::Refusal;
use serde::de::DeserializeOwned;

use crate::reach::{Reached, reach};

/// How long the node may take; its own timeouts are shorter.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Status code and body of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// The document of a response of `server`; an error response is an error.
    pub(super) fn document<T: DeserializeOwned>(&self, server: &str) -> anyhow::Result<T> {
        if self.code >= 300 {
            let refusal = serde_json::from_slice(&self.body).map(|Refusal { error }| error);
            let code = self.code;
            bail!(refusal.unwrap_or_else(|_| format!("the {server} answered with HTTP {code}")));
        }
        // A request that only changes something gets no content.
        let body: &[u8] = if self.body.is_empty() {
            b"{}"
        } else {
            &self.body
        };
        serde_json::from_slice(body).with_context(|| {
            format!("understand the {server}'s answer (is it of another version?)")
        })
    }
}

/// Sends a request without a body.
pub(super) fn request(socket: &Path, method: &str, target: &str) -> anyhow::Result<Answer> {
    let shown = socket.display();
    let stream = match reach(socket) {
        Reached::Answered(stream) => stream,
        Reached::Nobody(why) => {
            bail!("no node answers at {shown}: {why} (is one running? --socket PATH names another)")
        }
        Reached::Unknown(why) => bail!("cannot reach the node at {shown}: {why}"),
    };
    stream
        .set_read_timeout(Some(ANSWER_TIME_MAX))
        .context("bound the wait")?;
    exchange(stream, method, target, "")
}

/// Sends a request over a connection, with additional header lines, and reads the response.
pub(super) fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    target: &str,
    more: &str,
) -> anyhow::Result<Answer> {
    let head =
        format!("{method} {target} HTTP/1.1\r\nHost: posthaste\r\nConnection: close\r\n{more}\r\n");
    stream
        .write_all(head.as_bytes())
        .context("send the request")?;
    let mut answer = Vec::new();
    // After `Connection: close` the server ends the stream behind the body.
    match stream.read_to_end(&mut answer) {
        Ok(_) => parse(&answer),
        Err(error) if is_timeout(&error) => bail!(
            "no answer in {} s: the process is stopped, or waits for the kernel, as when other programs \
             change very many routes (ps -o pid,stat,wchan -C posthaste shows which); try again",
            ANSWER_TIME_MAX.as_secs()
        ),
        Err(error) => Err(error).context("wait for the answer"),
    }
}

/// Whether a call has taken longer than its socket's timeout.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn parse(answer: &[u8]) -> anyhow::Result<Answer> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.context("the answer was cut off")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let mut lines = head.lines();
    let code = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok());
    let code = code.context("the answer is not HTTP")?;
    let body = &answer[end + 4..];
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    // A node that is killed in between must not look like one with a short answer.
    if length.is_some_and(|length| length != body.len()) {
        bail!("the answer was cut off");
    }
    Ok(Answer {
        code,
        body: body.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that takes the request and stays silent.
    struct Silent;

    impl Read for Silent {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    impl Write for Silent {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn silence_is_named() {
        let error = exchange(Silent, "GET", "/status", "").unwrap_err();
        assert!(
            error.to_string().starts_with("no answer in 10 s"),
            "{error}"
        );
    }

    #[test]
    fn torn_answers_refused() {
        let answer = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!((answer.code, answer.body.as_slice()), (200, &b"{}"[..]));
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().code, 204);
        for torn in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}"[..],
            b"HTTP/1.1 200 OK\r\n",
            b"",
            b"x\r\n\r\n",
        ] {
            assert!(parse(torn).is_err());
        }
    }
}
