// SPDX-License-Identifier: Apache-2.0
//! Chains computed from a file, on the command line. Needs no network.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use crate::support::binary;

/// A long link, a way around by one node, and a lossy one that looks short.
const LINKS: &str = "\
from,to,rtt_ms,loss_percent,both
paris,tokyo,240,0,yes
paris,dubai,110,0,yes
dubai,tokyo,135,0,yes
paris,oslo,5,2,yes
oslo,tokyo,238,0,yes
";

struct Directory(Scratch);

impl Directory {
    fn new() -> Self {
        Self(Scratch::new().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

fn plan(file: &std::path::Path, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("plan").arg(file).args(words).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Where among the chains the best is.
fn place(best: &Value) -> usize {
    usize::try_from(best["chain"].as_u64().unwrap()).unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

// promise: G6
#[test]
fn choice_explained_and_drawn() {
    let directory = Directory::new();
    let file = directory.write("links.csv", LINKS);
    let chart = directory.0.path().join("chains.svg");
    let words = ["--from", "paris", "--to", "tokyo", "--size", "10KB,1MB"];
    let drawn = ["--chart", chart.to_str().unwrap()];
    let output = plan(&file, &[&words[..], &drawn].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("paris - dubai - tokyo"), "{text}");
    // 245 ms and half a millisecond for the node, a handshake of 135 ms, and 80 ms at 100 Mbit/s.
    assert!(
        text.contains("1 MB: dubai, 460.5 ms; direct takes 21.6 % longer"),
        "{text}"
    );
    let chart = fs::read_to_string(chart).unwrap();
    assert!(chart.starts_with("<svg ") && chart.contains("paris - dubai - tokyo"));

    let unauthorized = ["--assumed", "0", "--json"];
    let answer = json(&plan(&file, &[&words[..], &unauthorized].concat()));
    let best = &answer["best"][1];
    let chain = &answer["chains"][place(best)];
    assert_eq!(
        chain["nodes"],
        serde_json::json!(["paris", "dubai", "tokyo"])
    );
    // 7 rounds of 135 ms, as ten segments in the first are doubled.
    assert_eq!(best["time_ms"], 1190.5);
}

// promise: G6
#[test]
fn bounds_and_access_links() {
    let directory = Directory::new();
    let file = directory.write("links.csv", LINKS);
    let chain = |words: &[&str]| {
        let pair = [
            "--from", "paris", "--to", "tokyo", "--size", "1MB", "--json",
        ];
        let answer = json(&plan(&file, &[&pair[..], words].concat()));
        let chain = &answer["chains"][place(&answer["best"][0])];
        chain["nodes"].as_array().unwrap().len() - 2
    };
    assert_eq!(chain(&[]), 1);
    assert_eq!(chain(&["--nodes-max", "0"]), 0);
    assert_eq!(chain(&["--access", "240"]), 0);
    assert_eq!(chain(&["--node-cost", "2000"]), 0);
}

// promise: G6
#[test]
fn pairs_in_every_format() {
    let directory = Directory::new();
    let files = [
        directory.write("links.csv", LINKS),
        directory.write(
            "links.json",
            r#"{"links": [{"from": "a", "to": "b", "rtt_ms": 20, "both": true}]}"#,
        ),
    ];
    for (file, pairs) in files.iter().zip([12, 2]) {
        let answer = json(&plan(file, &["--size", "1MB", "--json"]));
        assert_eq!(answer["pairs"].as_array().unwrap().len(), pairs, "{file:?}");
        let text = plan(file, &["--size", "1MB"]);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(text.contains(&format!("{pairs} pairs.")), "{text}");
    }
}

// promise: G6
#[test]
fn mistakes_with_file_and_line() {
    let directory = Directory::new();
    let file = directory.write("links.csv", "from,to,rtt_ms\na,b,1\na,b,x\n");
    let message = stderr(&plan(&file, &[]));
    assert!(
        message.contains("links.csv:3: rtt_ms: \"x\" is not a number"),
        "{message}"
    );
    let file = directory.write("links.csv", LINKS);
    let message = stderr(&plan(&file, &["--from", "rome", "--to", "oslo"]));
    assert!(message.contains("there is no node rome in"), "{message}");
    assert!(
        message.contains("which has paris, tokyo, dubai, oslo"),
        "{message}"
    );
    let missing = directory.0.path().join("missing.csv");
    assert!(stderr(&plan(&missing, &[])).contains("missing.csv"));
}

#[test]
fn zero_cost_stays() {
    let directory = Directory::new();
    let chain = |cost: &str, words: &[&str]| {
        let links = r#"{"from": "a", "to": "x", "rtt_ms": 10}, {"from": "x", "to": "b", "rtt_ms": 10},
            {"from": "a", "to": "b", "rtt_ms": 20.2}"#;
        let text = format!(r#"{{"nodes": [{{"name": "x"{cost}}}], "links": [{links}]}}"#);
        let file = directory.write("links.json", &text);
        let pair = ["--from", "a", "--to", "b", "--json"];
        let words = [&pair[..], words].concat();
        let answer = json(&plan(&file, &words));
        let chains = answer["chains"].as_array().unwrap().iter();
        let by_x = chains.filter(|chain| chain["nodes"] == serde_json::json!(["a", "x", "b"]));
        by_x.map(|chain| chain["length_ms"].as_f64().unwrap())
            .collect::<Vec<_>>()
    };
    // A node that costs nothing makes the way by it 20 ms long; --node-cost is for the others.
    assert_eq!(chain(r#", "cost_ms": 0"#, &[]), [20.0]);
    assert_eq!(chain(r#", "cost_ms": 0"#, &["--node-cost", "7"]), [20.0]);
    assert_eq!(chain(r#", "cost_ms": 2"#, &[]), [22.0]);
    assert_eq!(chain("", &[]), [20.5]);
    assert_eq!(chain("", &["--node-cost", "0"]), [20.0]);
}

#[test]
fn links_without_delay_are_named() {
    let directory = Directory::new();
    let files = [
        (
            "links.csv",
            "from,to,rtt_ms\na,b,5\nb,a,0\n",
            "links.csv:3: rtt_ms from b to a is 0 ms",
        ),
        (
            "links.json",
            r#"{"links": [{"from": "a", "to": "b", "rtt_ms": 0}]}"#,
            "links.json: link 1 (\"a\" to \"b\"): rtt_ms is 0 ms",
        ),
    ];
    for (name, text, message) in files {
        let file = directory.write(name, text);
        let output = plan(&file, &["--json"]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(message), "{message} in {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let answer = json(&output);
        let warnings = answer["warnings"].as_array().unwrap();
        assert!(
            warnings[0].as_str().unwrap().contains(message),
            "{warnings:?}"
        );
    }
    // Of very many, some are named.
    let file = directory.write("links.csv", "from,to,rtt_ms\na,b,5\n");
    let output = plan(&file, &["--json"]);
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(json(&output)["warnings"], serde_json::json!([]));
    let links: String = (0..20).map(|end| format!("a,b{end},0\n")).collect();
    let file = directory.write("links.csv", &format!("from,to,rtt_ms\n{links}"));
    let warnings = json(&plan(&file, &["--json"]))["warnings"].clone();
    let warnings = warnings.as_array().unwrap();
    assert_eq!(warnings.len(), 9, "{warnings:?}");
    assert!(
        warnings[8]
            .as_str()
            .unwrap()
            .contains("12 more links are 0 ms"),
        "{warnings:?}"
    );
}
