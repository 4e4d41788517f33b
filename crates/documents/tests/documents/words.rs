// SPDX-License-Identifier: Apache-2.0
//! Words that this project does not use: invented names for things that the field has a name for,
//! and phrases that are no plain English.

use super::tree;

/// Invented words, each with the standard one. They are wrong as words and as parts of names.
const INVENTED: [(&str, &str); 68] = [
    ("acquit", "clear the failure"),
    ("ailment", "problem"),
    ("ailments", "problems"),
    ("asker", "requester"),
    ("askers", "requesters"),
    ("contender", "subject"),
    ("contenders", "subjects"),
    ("crowd", "clients or nodes, by number"),
    ("desk", "state, or server"),
    ("desks", "states, or servers"),
    ("doubts", "failures, or consecutive resets"),
    ("farewell", "GoAway"),
    ("farewells", "GoAways"),
    ("gate", "half-open entry"),
    ("gates", "half-open entries"),
    ("greeting", "request, message or banner"),
    ("greetings", "requests, messages or banners"),
    ("heed", "accept"),
    ("heeded", "accepted"),
    ("heeds", "accepts"),
    ("herald", "SYN option"),
    ("heralded", "requested in the SYN"),
    ("heralds", "SYN options"),
    ("judgement", "verdict"),
    ("knock", "probe"),
    ("knocked", "probed"),
    ("knocks", "probes"),
    ("lane", "worker's maps"),
    ("lanes", "workers' maps"),
    ("leaps", "steps of the clock"),
    ("lesson", "observation"),
    ("lessons", "observations"),
    ("mend", "fix"),
    ("mended", "repaired"),
    ("mends", "fixes"),
    ("misfit", "NACK"),
    ("misfits", "NACKs"),
    ("outran", "newer version reported"),
    ("outrun", "newer version reported"),
    ("prologue", "preface"),
    ("prologues", "prefaces"),
    ("proven", "validated"),
    ("remedies", "fixes"),
    ("remedy", "fix"),
    ("renewals", "TIME_WAIT SYNs"),
    ("roster", "membership"),
    ("seal", "authentication tag"),
    ("sealed", "authenticated"),
    ("seals", "authentication tags"),
    ("seat", "session"),
    ("seated", "connected"),
    ("seats", "sessions"),
    ("starved", "out of descriptors"),
    ("stranger", "unauthorized"),
    ("strangers", "unauthorized"),
    ("suspects", "failed destinations"),
    ("taught", "observed"),
    ("teach", "report"),
    ("teller", "sender"),
    ("unasked", "not requested"),
    ("unheard", "not received, or not supported"),
    ("unheeded", "ignored"),
    ("unheralded", "without a SYN option"),
    ("unlabelled", "to be resolved"),
    ("unproven", "unvalidated"),
    ("wish", "request or recommendation"),
    ("wished", "requested or recommended"),
    ("wishes", "requests or recommendations"),
];

/// Phrases that documents do not use, each with what to write.
const PHRASES: [(&str, &str); 32] = [
    ("anybody", "the actor's name"),
    ("are said", "are reported"),
    ("be had", "be available"),
    ("comes back", "returns"),
    ("for ever", "endlessly, or a time"),
    ("go by", "use"),
    ("go on", "continue"),
    ("goes by", "uses"),
    ("heard of", "received"),
    ("hears of", "receives, or is notified of"),
    ("in vain", "what happened instead"),
    ("is let go", "is closed or released"),
    ("is said", "is reported"),
    ("leave alone", "not touch"),
    ("left alone", "not touched"),
    ("nobody", "no and the actor's name"),
    ("of late", "recently, or a time"),
    ("of these those", "one noun for both"),
    ("said", "sent, reported or stated"),
    ("says", "sends, reports or states"),
    ("somebody", "the actor's name"),
    ("tells", "reports, sends or distinguishes"),
    ("to whom", "the actor's name"),
    ("told", "sent, reported or received"),
    ("whatever comes", "for any input"),
    ("who asks", "the actor's name"),
    ("who has", "the actor's name"),
    ("who is", "the actor's name"),
    ("who says", "the actor's name"),
    ("who speaks", "the actor's name"),
    ("whoever", "the actor's name"),
    ("without a word", "without a reply"),
];

/// Documents that are still to be rewritten.
const NOT_YET: &[&str] = &[];

/// Verbs of speech, which do not show what a machine does, each with literal ones. They are wrong as
/// words and as parts of names.
const SPEECH: [(&str, &str); 17] = [
    ("ask", "request, or check"),
    ("asked", "requested, or checked"),
    ("asking", "requesting, or checking"),
    ("asks", "requests, or checks"),
    ("hear", "receive"),
    ("heard", "received"),
    ("hears", "receives"),
    ("said", "sent, reported or stated"),
    ("say", "send, report or state"),
    ("saying", "sending, reporting or stating"),
    ("says", "sends, reports or states"),
    ("somebody", "the actor's name"),
    ("tell", "report, send or distinguish"),
    ("telling", "reporting, sending or distinguishing"),
    ("tells", "reports, sends or distinguishes"),
    ("told", "sent, reported or received"),
    ("whoever", "the actor's name"),
];

/// The code that uses literal verbs: not the tests of the whole product yet.
const LITERAL: [&str; 2] = ["crates/", "src/"];

/// The words of a text, in lower case: those of `snake_case` and `CamelCase` names apart.
fn words(line: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_alphabetic() || (c.is_uppercase() && was_lower) {
            found.push(String::new());
        }
        if c.is_alphabetic() {
            let word = found.last_mut().expect("there is one");
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    found.retain(|word| !word.is_empty());
    found
}

/// A word of a line that is in a list, and what to write in its place.
fn listed(
    line: &str,
    list: &[(&'static str, &'static str)],
) -> Option<(&'static str, &'static str)> {
    let words = words(line);
    let is_in = |banned: &&(&str, &str)| words.iter().any(|word| word == banned.0);
    list.iter().find(is_in).copied()
}

fn phrase(line: &str) -> Option<(&'static str, &'static str)> {
    let line = format!(" {} ", words(line).join(" "));
    let is_in = |banned: &&(&str, &str)| line.contains(&format!(" {} ", banned.0));
    PHRASES.iter().find(is_in).copied()
}

#[test]
fn standard_words() {
    let mut wrong = Vec::new();
    for file in tree::files(&[".md", ".rs", ".c", ".h"]) {
        if file.path.starts_with("crates/documents/") {
            continue;
        }
        for (number, line) in (1..).zip(file.text.lines()) {
            let mut lists = vec![&INVENTED[..]];
            if LITERAL.iter().any(|part| file.path.starts_with(part)) {
                lists.push(&SPEECH);
            }
            for (banned, standard) in lists.into_iter().filter_map(|list| listed(line, list)) {
                wrong.push(format!(
                    "{}:{number}: {banned}: write {standard}",
                    file.path
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn plain_phrases() {
    let mut wrong = Vec::new();
    let mut clean = Vec::new();
    for file in tree::files(&[".md"]) {
        let lines = (1..).zip(file.text.lines());
        let found = lines.filter_map(|(number, line)| Some((number, phrase(line)?)));
        let found: Vec<String> = found
            .map(|(number, (banned, plain))| {
                format!("{}:{number}: {banned}: write {plain}", file.path)
            })
            .collect();
        match NOT_YET.contains(&file.path.as_str()) {
            false => wrong.extend(found),
            true if found.is_empty() => clean.push(file.path),
            true => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(clean.is_empty(), "take these off the list: {clean:?}");
}

#[test]
fn names_are_split() {
    assert_eq!(
        words("fn send_herald(HeraldKind)"),
        ["fn", "send", "herald", "herald", "kind"]
    );
    assert!(listed("let x = SendHerald;", &INVENTED).is_some());
    assert!(listed("heraldry", &INVENTED).is_none());
    assert!(listed("fn told_size()", &SPEECH).is_some());
    assert!(phrase("It tried, in vain.").is_some());
}
