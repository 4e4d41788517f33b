// SPDX-License-Identifier: Apache-2.0
//! The listeners of the control thread, bound before it starts so that their
//! errors stop the node.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::door::{Knock, knock};
use crate::groups::Group;

/// The admin socket. Its file goes when it is dropped.
#[derive(Debug)]
pub(super) struct AdminSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Binds, replacing a file that a dead node left. Members of `group` may use the socket, besides
    /// the user that this process is.
    pub(super) fn bind(path: &Path, group: Option<&Group>) -> anyhow::Result<Self> {
        if let Some(parent) = path.parent() {
            make_directory(parent).with_context(|| format!("create {}", parent.display()))?;
        }
        remove_stale(path)?;
        let bound = UnixListener::bind(path)
            .with_context(|| format!("bind the admin socket {}", path.display()))?;
        if let Some(group) = group {
            give_to(path, group)?;
        }
        fs::set_permissions(path, Permissions::from_mode(0o660))
            .context("set the mode of the admin socket")?;
        bound
            .set_nonblocking(true)
            .context("make the admin socket non-blocking")?;
        Ok(Self {
            listener: bound,
            path: path.into(),
        })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a directory, and those above it that lack, such that everybody may enter, whatever the
/// umask says.
fn make_directory(directory: &Path) -> std::io::Result<()> {
    let lacking: Vec<_> = directory
        .ancestors()
        .take_while(|above| !above.exists())
        .collect();
    for directory in lacking.into_iter().rev() {
        match DirBuilder::new().mode(0o755).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => fs::set_permissions(directory, Permissions::from_mode(0o755))?,
        }
    }
    Ok(())
}

/// Gives the socket to a group. Who is not root may give it to groups of its own only.
fn give_to(path: &Path, group: &Group) -> anyhow::Result<()> {
    std::os::unix::fs::chown(path, None, Some(group.id)).with_context(|| {
        format!(
            "admin.group = \"{group}\": give {} to the group (run the node as root or as a member of it: in a systemd unit SupplementaryGroups={group})",
            path.display()
        )
    })
}

/// Fails when a node answers at `path`, or when nobody can tell.
pub(crate) fn ensure_alone(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    match knock(path) {
        Knock::Answered(_) => bail!("another node runs here: it answers at {shown}"),
        Knock::Unknown(why) => bail!("cannot tell whether another node runs here: {why}"),
        Knock::Nobody(_) => Ok(()),
    }
}

fn remove_stale(path: &Path) -> anyhow::Result<()> {
    ensure_alone(path)?;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("look at {}", path.display())),
        Ok(found) if !found.file_type().is_socket() => {
            bail!(
                "{} is not a socket: choose another admin.socket, or remove it",
                path.display()
            )
        }
        Ok(_) => fs::remove_file(path)
            .with_context(|| format!("remove the stale socket {}", path.display())),
    }
}

/// Binds the address of the metrics.
pub(super) fn bind_metrics(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("bind metrics.listen = \"{address}\" (choose another address, or \"off\")")
    })?;
    listener
        .set_nonblocking(true)
        .context("make the metrics socket non-blocking")?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ph-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = directory("admin-stale");
        let path = directory.join("deeper/admin.sock");
        let first = AdminSocket::bind(&path, None).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o660
        );
        let error = AdminSocket::bind(&path, None).unwrap_err().to_string();
        assert!(error.contains("another node runs here"), "{error}");
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        drop(AdminSocket::bind(&path, None).unwrap());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_socket_is_given_to_a_group() {
        use std::os::unix::fs::MetadataExt;
        let directory = directory("admin-group");
        let path = directory.join("admin.sock");
        let group = crate::groups::of_id(4_000_123);
        let bound = AdminSocket::bind(&path, Some(&group)).expect("these tests need root");
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o777), (group.id, 0o660));
        drop(bound);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn other_files_are_kept() {
        let directory = directory("admin-file");
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("precious");
        fs::write(&path, "data").unwrap();
        let error = AdminSocket::bind(&path, None).unwrap_err().to_string();
        assert!(error.contains("is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
        fs::remove_dir_all(directory).unwrap();
    }
}
