// SPDX-License-Identifier: Apache-2.0
//! Some of the lab's experiments, made small: real nodes, and records that hold what was measured. How fast
//! anything was is not looked at here.

use std::fs;
use std::path::Path;

use clap::Parser;
use posthaste_lab::record::Record;
use posthaste_lab::scratch::Scratch;
use posthaste_lab::transfers::overlay;
use posthaste_lab::{fleet, mix, router_churn};

#[derive(Debug, Parser)]
struct Fleet {
    #[command(flatten)]
    args: fleet::Args,
}

#[derive(Debug, Parser)]
struct Overlay {
    #[command(flatten)]
    args: overlay::Args,
}

#[derive(Debug, Parser)]
struct Mix {
    #[command(flatten)]
    args: mix::Args,
}

#[derive(Debug, Parser)]
struct RouterChurn {
    #[command(flatten)]
    args: router_churn::Args,
}

/// Arguments that every experiment takes, and some of its own.
fn words<'a>(output: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let program = env!("CARGO_BIN_EXE_posthaste");
    let output = output.to_str().expect("paths are text");
    let mut words = vec!["lab", "--node-binary", program, "--output", output];
    words.extend(more);
    words
}

/// The only record of a directory.
fn record(output: &Path) -> Record {
    let files = fs::read_dir(output).expect("there is a record");
    let paths = files.map(|file| file.expect("files can be listed").path());
    let mut records = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
    Record::read(&records.next().expect("there is a record")).expect("it can be read")
}

#[test]
fn small_fleet() {
    let output = Scratch::new().unwrap();
    let few = ["--nodes", "12", "--seconds", "2", "--deaths", "1"];
    let fleet = Fleet::parse_from(words(output.path(), &few));
    fleet::run(&fleet.args).unwrap();
    let record = record(output.path());
    let values = |quantity: &str| {
        let samples = record.samples.iter();
        let of = samples.filter(|samples| samples.quantity == quantity);
        of.map(|samples| samples.values.len()).collect::<Vec<_>>()
    };
    assert_eq!(values("rows of all links"), [12]);
    assert_eq!(values("new rows"), [12, 11], "a link died, and a node");
}

#[test]
fn small_overlay() {
    let (output, data) = (Scratch::new().unwrap(), Scratch::new().unwrap());
    fs::create_dir(data.path().join("cloud")).unwrap();
    let matrix = "1 80 40 70\n80 1 42 70\n40 42 1 70\n70 70 70 1\n";
    fs::write(data.path().join("cloud/aws21_cloudping_ms.tsv"), matrix).unwrap();
    let data = data.path().to_str().unwrap();
    let few = [
        "--data",
        data,
        "--places",
        "0,1,2,3",
        "--pairs",
        "0-1",
        "--sizes",
        "10,100",
        "--repeats",
        "1",
        "--moves",
        "0",
        "--tolerance",
        "100000",
        "--behind",
        "100000",
    ];
    let overlay = Overlay::parse_from(words(output.path(), &few));
    overlay::run(&overlay.args).unwrap();
    let record = record(output.path());
    for subject in ["direct", "chain, cold", "chain, warm", "reverse proxy"] {
        let samples = record.samples.iter();
        let times = samples.filter(|samples| samples.quantity.starts_with("time to"));
        let of = times.filter(|samples| samples.labels["subject"] == subject);
        assert_eq!(
            of.count(),
            6,
            "{subject}: two sizes, and three times of each"
        );
    }
    let is_remarked = |part: &str| record.remarks.iter().any(|remark| remark.contains(part));
    assert!(
        is_remarked("with cold hops: 0 hops had waited"),
        "{:?}",
        record.remarks
    );
}

#[test]
fn small_mix() {
    let output = Scratch::new().unwrap();
    let few = ["--connections", "80", "--seconds", "3"];
    let mix = Mix::parse_from(words(output.path(), &few));
    mix::run(&mix.args).expect("no connection fails that does not without a node");
    let record = record(output.path());
    for router in ["plain", "masquerading"] {
        let of = |quantity: &str, subject: &str| {
            let mut samples = record.samples.iter().filter(|one| {
                one.quantity == quantity
                    && one.labels["router"] == router
                    && one.labels["subject"] == subject
            });
            samples.next().expect("it was measured").values.clone()
        };
        let [none, default, sockets] =
            ["none", "default", "sockets"].map(|subject| of("answered early", subject)[0]);
        assert_eq!(none, 0.0, "{router}: nobody but the server answers");
        assert!(
            default > 0.0 && sockets > default,
            "{router}: {default}, {sockets}"
        );
        assert!(of("answered by packets", "default")[0] > 0.0, "{router}");
        assert!(of("relayed", "sockets")[0] > 40.0, "{router}");
        let times = ["none", "default", "sockets"].map(|subject| of("completion", subject).len());
        assert!(times[0] > 40, "{router}: {times:?}");
        assert_eq!(times, [times[0]; 3], "{router}: the same connections");
    }
}

/// The experiment reports each failed connection.
// promise: I10
#[test]
fn small_router_churn() {
    let output = Scratch::new().unwrap();
    let few = ["--connections", "2000", "--rate", "100"];
    let churn = RouterChurn::parse_from(words(output.path(), &few));
    router_churn::run(&churn.args).expect("every connection ends as without a node");
    let record = record(output.path());
    let count = |label: &str, quantity: &str, node: &str| {
        let samples = record.samples.iter().filter(|one| one.quantity == quantity);
        let of = samples.filter(|one| one.labels.contains_key(label) && one.labels["node"] == node);
        of.map(|one| one.values[0]).collect::<Vec<f64>>()
    };
    let kinds = count("kind", "connections", "with");
    assert_eq!(kinds.len(), 11, "{kinds:?}");
    assert_eq!(kinds.iter().sum::<f64>(), 2000.0);
    let faults = count("meanwhile", "times", "with");
    assert_eq!(faults.iter().sum::<f64>(), 10.0, "{faults:?}");
}
