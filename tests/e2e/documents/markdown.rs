// SPDX-License-Identifier: Apache-2.0
//! The fenced blocks of a document that name their host.

/// What is done with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its lines are commands.
    Commands,
    /// It is this file.
    File(String),
}

/// A block, and the hosts that it is for.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) hosts: Vec<String>,
    pub(super) step: Step,
    pub(super) text: String,
}

/// The blocks that name hosts, in their order. One with a command must.
pub(super) fn blocks(document: &str, markdown: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let value = |key: &str| {
            let mut words = info.split_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let Some(hosts) = value("host") else {
            let commands = ["posthaste ", "systemctl ", "sudo "];
            let is_command = |line: &&&str| commands.iter().any(|word| line.starts_with(word));
            let command = text.iter().find(is_command);
            assert!(command.is_none(), "{document}: on which host? {command:?}");
            continue;
        };
        found.push(Block {
            hosts: hosts.split(',').map(Into::into).collect(),
            step: value("file").map_or(Step::Commands, |file| Step::File(file.into())),
            text: text.join("\n") + "\n",
        });
    }
    found
}
