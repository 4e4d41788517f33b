// SPDX-License-Identifier: Apache-2.0
//! Groups of this host by name and number, from the file: a static program cannot use the C
//! library's group directories, so groups of those need numbers.

use std::fmt;
use std::fs;

const FILE: &str = "/etc/group";

/// A group, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number (GID).
    pub id: u32,
    /// `None` for a group without a name here.
    pub name: Option<String>,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.id),
        }
    }
}

/// The number of the group of this name.
pub fn id_of(name: &str) -> Option<u32> {
    // Not an error without the file: a group can be configured by its number.
    let text = fs::read_to_string(FILE).unwrap_or_default();
    let found = entries(&text).find(|(known, _)| *known == name);
    found.map(|(_, id)| id)
}

/// The group of this number, with its name if it has one here.
pub fn of_id(id: u32) -> Group {
    let text = fs::read_to_string(FILE).unwrap_or_default();
    let found = entries(&text).find(|(_, known)| *known == id);
    let name = found.map(|(name, _)| name.to_owned());
    Group { id, name }
}

fn entries(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.lines().filter_map(|line| {
        // group(5): name:password:GID:members.
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        Some((name, fields.nth(1)?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_names_and_numbers() {
        let text = "root:x:0:\nnetops:x:1234:ada,bob\n\nbroken\nalso:x:many:\n";
        let all: Vec<_> = entries(text).collect();
        assert_eq!(all, [("root", 0), ("netops", 1234)]);
    }

    #[test]
    fn group_by_name_or_number() {
        let mut group = of_id(u32::MAX);
        assert_eq!(group.to_string(), u32::MAX.to_string());
        group.name = Some("netops".into());
        assert_eq!(group.to_string(), "netops");
    }
}
