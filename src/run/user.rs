// SPDX-License-Identifier: Apache-2.0
//! The user of a command, from the files: a static program cannot use the C library's user
//! directories.

use std::fs;

use anyhow::{Context, bail};
use nix::unistd::{Gid, Uid};

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// A user of this host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) gid: Gid,
    /// All of its groups.
    pub(super) groups: Vec<Gid>,
    pub(super) home: String,
}

impl User {
    /// The user of this name.
    pub(super) fn find(name: &str) -> anyhow::Result<Self> {
        let read = |file| fs::read_to_string(file).with_context(|| format!("read {file}"));
        let (users, groups) = (read(USERS)?, read(GROUPS)?);
        match Self::parse(name, &users, &groups) {
            Some(user) => Ok(user),
            None => bail!("--user {name}: there is no such user in {USERS}"),
        }
    }

    fn parse(name: &str, users: &str, groups: &str) -> Option<Self> {
        let mut users = users
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>());
        // passwd(5) has seven fields; anything else names no user.
        let fields = users.find(|fields| fields[0] == name && fields.len() >= 7)?;
        let gid = Gid::from_raw(fields[3].parse().ok()?);
        let others = groups.lines().filter_map(|line| {
            let fields: Vec<_> = line.split(':').collect();
            let is_member = fields.get(3)?.split(',').any(|member| member == name);
            // It exists: the members are a later field (group(5)).
            let gid = fields[2].parse().ok().map(Gid::from_raw)?;
            is_member.then_some(gid)
        });
        Some(Self {
            name: name.to_owned(),
            uid: Uid::from_raw(fields[2].parse().ok()?),
            gid,
            groups: std::iter::once(gid).chain(others).collect(),
            home: fields[5].to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_has_all_groups() {
        let users = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:100:Ann,,,:/home/ann:/bin/sh\n";
        let groups = "root:x:0:\nusers:x:100:\naudio:x:29:bob,ann\nsudo:x:27:anna\n";
        let ann = User::parse("ann", users, groups).unwrap();
        assert_eq!(
            (ann.uid, ann.gid),
            (Uid::from_raw(1000), Gid::from_raw(100))
        );
        assert_eq!(ann.groups, [100, 29].map(Gid::from_raw));
        assert_eq!(ann.home, "/home/ann");
        assert_eq!(User::parse("an", users, groups), None);
        assert_eq!(User::parse("", users, groups), None);
    }
}
