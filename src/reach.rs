// SPDX-License-Identifier: Apache-2.0
//! Connects to the admin socket, and explains a failure.
//!
//! All verbs that look for a node there use the same texts, so that a socket without permission is
//! never reported as one without a node.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use posthaste_config::Config;
use posthaste_config::groups::{self, Group};

/// How long a killed process may answer.
const DYING_MAX: Duration = Duration::from_secs(1);
/// Mode bits that allow entering a directory: for the group, for all.
const GROUP_ENTERS: u32 = 0o010;
const ALL_ENTER: u32 = 0o001;

/// The result of connecting to an admin socket.
#[derive(Debug)]
pub(crate) enum Reached {
    /// A node answers.
    Answered(UnixStream),
    /// There is no socket, or no process serves it, with the reason.
    Nobody(String),
    /// Unknown: this user lacks permission, or connecting failed for another reason.
    Unknown(String),
}

/// Connects to the admin socket at `path`.
pub(crate) fn reach(path: &Path) -> Reached {
    match UnixStream::connect(path) {
        Ok(stream) => Reached::Answered(stream),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => Reached::Nobody("there is no such file".into()),
            ErrorKind::ConnectionRefused => Reached::Nobody(
                "its file is there, but no process serves it: a node was killed, or has just ended"
                    .into(),
            ),
            ErrorKind::PermissionDenied => Reached::Unknown(denied(path)),
            _ => Reached::Unknown(error.to_string()),
        },
    }
}

/// Fails when a node listens at `path`, or when that is unknown. A killed process listens until the
/// kernel has closed its sockets, so a node has to answer for [`DYING_MAX`].
pub(crate) fn ensure_alone(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let until = Instant::now() + DYING_MAX;
    let mut reached = reach(path);
    while matches!(reached, Reached::Answered(_)) && Instant::now() < until {
        thread::sleep(DYING_MAX / 20);
        reached = reach(path);
    }
    match reached {
        Reached::Answered(_) => bail!("another node runs here: it answers at {shown}"),
        Reached::Unknown(why) => bail!("cannot check whether another node runs here: {why}"),
        Reached::Nobody(_) => Ok(()),
    }
}

/// Why this user may not use the socket, and which user may.
fn denied(path: &Path) -> String {
    match closed(path) {
        Some(directory) => format!(
            "permission denied on the directory {}{}: be root, or have its owner let you enter",
            directory.display(),
            owner(&directory)
        ),
        None => format!(
            "permission denied on {}{}: be root or a member of its group, which admin.group of the \
             node's configuration chooses",
            path.display(),
            owner(path)
        ),
    }
}

/// The outermost directory above `path` that this user may not enter.
fn closed(path: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    // From the root: a directory that this user may not enter hides all below it.
    above.reverse();
    let is_closed = |directory: &&Path| {
        // `.` requires permission to enter the directory; its own metadata requires that of its
        // parent only.
        let inside = fs::symlink_metadata(directory.join("."));
        inside.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    above.into_iter().find(is_closed).map(Path::to_owned)
}

/// The owner of a file, as an apposition.
fn owner(path: &Path) -> String {
    let Ok(found) = fs::metadata(path) else {
        return String::new();
    };
    let (group, mode) = (groups::of_id(found.gid()), found.mode() & 0o777);
    format!(
        ", which belongs to user {} and group {group}, mode {mode:04o}",
        found.uid()
    )
}

/// What denies members of `admin.group` the admin socket, if anything does.
pub(crate) fn obstacle(config: &Config) -> Option<String> {
    barrier(&config.admin_socket, config.admin_group.as_ref()?)
}

/// A directory above `path` that neither members of the group nor all users may enter.
fn barrier(path: &Path, group: &Group) -> Option<String> {
    let closed = path.ancestors().skip(1).find(|directory| {
        let Ok(found) = fs::metadata(directory) else {
            return false;
        };
        let by_group = found.gid() == group.id && found.mode() & GROUP_ENTERS != 0;
        !by_group && found.mode() & ALL_ENTER == 0
    })?;
    let shown = closed.display();
    Some(format!(
        "admin.group = \"{group}\": members of the group cannot enter {shown}, above admin.socket: \
         chgrp {group} {shown} && chmod g+x {shown}, or choose another admin.socket"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ph-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn unserved_socket_or_none() {
        let directory = Directory::new("no-group");
        let path = directory.0.join("admin.sock");
        let nobody = |path: &Path| match reach(path) {
            Reached::Nobody(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(nobody(&path), "there is no such file");
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(reach(&path), Reached::Answered(_)));
        drop(listener);
        assert!(nobody(&path).contains("no process serves it"));
    }

    #[test]
    fn directory_must_be_enterable() {
        let directory = Directory::new("no-permission");
        let path = directory.0.join("admin.sock");
        let group = groups::of_id(4_000_123);
        let set = |mode| fs::set_permissions(&directory.0, Permissions::from_mode(mode)).unwrap();
        set(0o755);
        assert_eq!(barrier(&path, &group), None);
        set(0o750);
        let why = barrier(&path, &group).unwrap();
        assert!(why.contains("chgrp 4000123"), "{why}");
        assert_eq!(
            barrier(&path, &groups::of_id(nix::unistd::getegid().as_raw())),
            None
        );
    }
}
