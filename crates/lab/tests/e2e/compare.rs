// SPDX-License-Identifier: Apache-2.0
//! The benchmark itself: loads of every kind are carried in full, and what it counts is so.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use posthaste_lab::process::Process;
use posthaste_lab::record::Record;
use posthaste_lab::scratch::Scratch;

const SOON: Duration = Duration::from_secs(300);

/// Runs the benchmark with the two subjects that every machine has.
fn compare(loads: &str, output: &Path) -> Record {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste-lab"));
    command.args(["compare", "--subjects", "forwarding", "--rounds", "1"]);
    command.args(["--window", "0.5", "--loads", loads, "--output"]);
    let mut lab = Process::spawn("the lab", {
        command.arg(output);
        command
    })
    .expect("the lab starts");
    let status = lab.wait(SOON).expect("the lab ends");
    assert!(status.success(), "{}{}", lab.stdout(), lab.stderr());
    let files = std::fs::read_dir(output).expect("there is a record");
    let paths = files.map(|file| file.expect("files can be listed").path());
    let record = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
    Record::read(&record.last().expect("there is a record")).expect("it can be read")
}

/// The only value of a quantity of a load by a subject.
fn value(record: &Record, quantity: &str, load: &str, subject: &str) -> f64 {
    let samples = record.samples.iter().find(|samples| {
        samples.quantity == quantity
            && samples.labels["load"] == load
            && samples.labels["subject"] == subject
    });
    let values = &samples
        .unwrap_or_else(|| panic!("no {quantity} of {load}"))
        .values;
    assert_eq!(values.len(), 1);
    values[0]
}

#[test]
fn all_loads_carried() {
    let output = Scratch::new().unwrap();
    let record = compare(
        "8k-64,8k-low,mixed,1m,bulk-16,ping-pong,syn,syn-far",
        output.path(),
    );
    assert_eq!(record.remarks, Vec::<String>::new());
    for subject in ["direct", "forwarding"] {
        let of = |quantity, load| value(&record, quantity, load, subject);
        for load in ["8k-64", "8k-low", "mixed", "1m", "bulk-16", "ping-pong"] {
            assert!(of("rate", load) > 0.0 && of("total CPU", load) > 0.0);
        }
        // Three to open, two of data, two to end, and what acknowledges these; a lost or repeated
        // packet more on a machine that is slow.
        for side in ["client's", "server's"] {
            let quantity = format!("packets per connection, {side} link");
            let packets = value(&record, &quantity, "8k-64", subject);
            assert!((9.0..15.0).contains(&packets), "{subject}: {packets}");
        }
    }
    for load in ["syn", "syn-far"] {
        assert!(value(&record, "median delay of SYNs", load, "forwarding") > 0.0);
    }
    // Each way takes 5 ms, for SYN and SYN-ACK, and for request and object.
    assert!(value(&record, "median time", "syn-far", "direct") > 20_000.0);
    assert_eq!(
        record.tables.len(),
        9,
        "no target is checked without posthaste"
    );
}
