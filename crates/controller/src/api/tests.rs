// SPDX-License-Identifier: Apache-2.0
//! The description of the API against what it answers: every route, every document.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use axum::body::Body;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::planner;
use crate::server::fixture;

/// The word in the file of the operate token.
fn token() -> String {
    "5a".repeat(32)
}

/// A server with two nodes and a plan.
fn server(name: &str) -> Arc<Server> {
    let server = fixture::server(name);
    for number in [1, 2] {
        fixture::come(&server, number);
    }
    let work = || server.lock().state.work(server.now());
    let mut works = 0;
    while let Some(work) = work() {
        planner::make(&server, work);
        works += 1;
    }
    assert_eq!(
        works, 2,
        "all have reported their links: tables, and the RIB"
    );
    server
}

/// Code and body of an answer.
fn query(server: &Arc<Server>, method: &str, target: &str, body: &str) -> (u16, String) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::clone(server)));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (token, length) = (token(), body.len());
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        server.abort();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, body.to_owned())
    })
}

/// The description, parsed.
fn described() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// Asserts that a value is what a schema describes, and no more.
fn assert_fits(value: &Value, schema: &Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap();
        return assert_fits(value, &described()["components"]["schemas"][name], name);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let schema = if value.is_null() { &any[1] } else { &any[0] };
        return assert_fits(value, schema, place);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.clone(),
        kind => vec![kind.clone()],
    };
    assert!(
        kinds.contains(&json!(kind)),
        "{place}: {kind} and not {kinds:?}"
    );
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{place}: {value}");
    }
    for item in value.as_array().into_iter().flatten() {
        assert_fits(item, &schema["items"], place);
    }
    if let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object())
    {
        let given: BTreeSet<&String> = object.keys().collect();
        let message: BTreeSet<&String> = properties.keys().collect();
        assert_eq!(given, message, "{place}");
        for (key, value) in object {
            assert_fits(value, &properties[key], &format!("{place}.{key}"));
        }
    }
}

// promise: O12
#[test]
fn openapi_matches_routes() {
    let server = server("openapi");
    let table = "{\"prefixes\": [{\"prefix\": \"192.0.2.0/24\", \"node\": \"paris\"}]}";
    for (path, methods) in described()["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let target = match path.as_str() {
                "/v1/plan/{node}" => "/v1/plan/paris",
                "/v1/explain" => "/v1/explain?from=paris&to=rome&bytes=100000&access_us=5",
                path => path,
            };
            let body = if method == "put" { table } else { "" };
            let (code, body) = query(&server, &method.to_uppercase(), target, body);
            assert_eq!(code, 200, "{method} {path}: {body}");
            let content = &operation["responses"]["200"]["content"];
            let schema = &content["application/json"]["schema"];
            if !schema.is_null() {
                let document = serde_json::from_str(&body).unwrap();
                assert_fits(&document, schema, path);
            }
        }
    }
}

// promise: O12
#[test]
fn every_route_is_described() {
    // The router does not list its routes, so they are read from where they are made.
    let source = include_str!("../api.rs");
    let made = source.split(".route(\"").skip(1);
    let made: BTreeSet<&str> = made.map(|rest| rest.split('"').next().unwrap()).collect();
    let described = described();
    let described = described["paths"].as_object().unwrap().keys();
    assert_eq!(made, described.map(String::as_str).collect());
    assert!(made.len() > 10, "{made:?}");
}

#[test]
fn unknown_requests_refused() {
    let server = server("refused");
    for (target, code) in [
        ("/v1/plan/oslo", 404),
        ("/v1/explain?from=paris&to=oslo", 404),
        ("/v1/explain?from=paris&to=paris", 404),
        ("/v1/explain?from=paris", 400),
        ("/v1/links?node=oslo", 404),
        ("/v1/links?limit=x", 400),
        ("/nonsense", 404),
    ] {
        assert_eq!(query(&server, "GET", target, "").0, code, "{target}");
    }
    assert_eq!(query(&server, "DELETE", "/v1/nodes", "").0, 405);
    let (code, body) = query(
        &server,
        "PUT",
        "/v1/prefixes",
        "{\"prefixes\": [], \"x\": 1}",
    );
    assert_eq!(code, 422, "{body}");
}

/// A request that comes while a plan is being made is answered by that plan.
#[test]
fn requests_wait_for_a_plan_that_is_being_made() {
    let server = fixture::server("planning");
    for number in [1, 2] {
        fixture::come(&server, number);
    }
    let work = || server.lock().state.work(server.now());
    planner::make(&server, work().unwrap());
    let with_rib = work().unwrap();
    thread::scope(|scope| {
        let target = "/v1/explain?from=paris&to=rome";
        let answer = scope.spawn(|| query(&server, "GET", target, ""));
        // Time for the request to come; if it comes later, there is a plan already.
        thread::sleep(Duration::from_millis(200));
        planner::make(&server, with_rib);
        let (code, body) = answer.join().unwrap();
        assert_eq!(code, 200, "{body}");
    });
}

#[test]
fn metrics_well_formed_and_unique() {
    let server = server("metrics");
    let (_, page) = query(&server, "GET", "/metrics", "");
    let mut families = BTreeSet::new();
    let mut family = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
            assert!(families.insert(family), "{family} repeats");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(name.split('{').next().unwrap(), family, "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    for line in [
        "posthaste_controller_node_connected{node=\"paris\"} 1",
        "posthaste_controller_plan_version 1",
        "posthaste_controller_plan_links 2",
        "posthaste_controller_registrations_total 2",
        "posthaste_controller_unauthorized_total{reason=\"key\"} 0",
    ] {
        assert!(
            page.lines().any(|given| given == line),
            "{line} is not in\n{page}"
        );
    }
}

#[test]
fn tokens_are_compared_whole() {
    assert!(is_same("abc", "abc"));
    for other in ["abd", "ab", "abcd", ""] {
        assert!(!is_same("abc", other), "{other}");
    }
    let header = |value: &str| {
        let request = Request::builder().header(header::AUTHORIZATION, value);
        let request = request.body(Body::empty()).unwrap();
        bearer(request.headers()).map(str::to_owned)
    };
    assert_eq!(header("Bearer abc").as_deref(), Some("abc"));
    assert_eq!(header("bearer  abc").as_deref(), Some("abc"));
    assert_eq!(header("Basic abc"), None);
    assert_eq!(header("abc"), None);
}
