// SPDX-License-Identifier: Apache-2.0
//! The listeners of the control thread, bound before it starts so that errors stop the node.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};

use crate::host::give_to_owner_of_directory;
use crate::reach::ensure_alone;
use posthaste_config::groups::Group;
use posthaste_daemon::thread::lock;

/// The admin socket. Dropping it removes its file.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    pub(super) listener: UnixListener,
    place: Arc<Place>,
}

/// The path of an admin socket. It changes when one node replaces another.
#[derive(Debug)]
pub(crate) struct Place {
    /// The configured path.
    configured: PathBuf,
    current: Mutex<PathBuf>,
}

impl Place {
    fn new(configured: &Path, current: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            configured: configured.into(),
            current: Mutex::new(current),
        })
    }

    /// The path of the node once it is replaced.
    pub(crate) fn aside(&self) -> PathBuf {
        socket_aside(&self.configured)
    }

    /// Gives the place to a successor: the socket is available aside, and until the successor's
    /// socket replaces it, here too.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        let aside = self.aside();
        // Not a rename: the configured path answers without a gap until the successor's file
        // replaces it.
        fs::hard_link(&self.configured, &aside)?;
        *lock(&self.current) = aside;
        Ok(())
    }

    /// Moves to the configured path.
    pub(crate) fn take(&self) -> io::Result<()> {
        let mut current = lock(&self.current);
        // It replaces the predecessor's file in one step, so a client always finds a socket.
        fs::rename(&*current, &self.configured)?;
        current.clone_from(&self.configured);
        Ok(())
    }
}

impl AdminSocket {
    /// Binds, replacing a file that a dead node left. Members of `group` may use the socket,
    /// besides the user of this process.
    pub(super) fn bind(path: &Path, group: Option<&Group>) -> anyhow::Result<Self> {
        Self::bind_at(path, path.into(), group)
    }

    /// Binds beside `path`, where another node listens, to take its place later.
    pub(super) fn bind_aside(path: &Path, group: Option<&Group>) -> anyhow::Result<Self> {
        Self::bind_at(path, socket_aside(path), group)
    }

    fn bind_at(configured: &Path, path: PathBuf, group: Option<&Group>) -> anyhow::Result<Self> {
        if let Some(parent) = path.parent() {
            make_directory(parent).with_context(|| format!("create {}", parent.display()))?;
        }
        remove_stale(&path)?;
        let bound = UnixListener::bind(&path)
            .with_context(|| format!("bind the admin socket {}", path.display()))?;
        give_to_owner_of_directory(&path);
        if let Some(group) = group {
            // Before the mode lets the group in: it must be the right one by then.
            give_to(&path, group)?;
        }
        // bind(2) has created it as the umask allows.
        fs::set_permissions(&path, Permissions::from_mode(0o660))
            .context("set the mode of the admin socket")?;
        bound
            .set_nonblocking(true)
            .context("make the admin socket non-blocking")?;
        Ok(Self {
            listener: bound,
            place: Place::new(configured, path),
        })
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.place
    }
}

/// The path of this process's admin socket while another has its place.
fn socket_aside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // The configured path may belong to a successor by now.
        let _ = fs::remove_file(&*lock(&self.place.current));
    }
}

/// Creates a directory and its missing parents with permission for all to enter, whatever the
/// umask.
fn make_directory(directory: &Path) -> io::Result<()> {
    let lacking: Vec<_> = directory
        .ancestors()
        .take_while(|above| !above.exists())
        .collect();
    for directory in lacking.into_iter().rev() {
        match DirBuilder::new().mode(0o755).create(directory) {
            // Another process may have created it meanwhile.
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => fs::set_permissions(directory, Permissions::from_mode(0o755))?,
        }
    }
    Ok(())
}

/// Gives the socket to a group. A user other than root can only give it to groups it is in.
fn give_to(path: &Path, group: &Group) -> anyhow::Result<()> {
    std::os::unix::fs::chown(path, None, Some(group.id)).with_context(|| {
        format!(
            "admin.group = \"{group}\": give {} to the group (run the node as root or as a member of it: in a systemd unit SupplementaryGroups={group})",
            path.display()
        )
    })
}

fn remove_stale(path: &Path) -> anyhow::Result<()> {
    // A file does not show whether its node runs; a connection does.
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

/// Binds the metrics address.
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
    use std::os::unix::net::UnixStream;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ph-{name}-{}", std::process::id()))
    }

    #[test]
    fn stale_socket_replaced() {
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
    fn socket_given_to_group() {
        use std::os::unix::fs::MetadataExt;
        let directory = directory("admin-group");
        let path = directory.join("admin.sock");
        let group = posthaste_config::groups::of_id(4_000_123);
        let bound = AdminSocket::bind(&path, Some(&group)).expect("these tests need root");
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o777), (group.id, 0o660));
        drop(bound);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn listener_moves_sockets() {
        let directory = directory("admin-place");
        let path = directory.join("admin.sock");
        let first = AdminSocket::bind(&path, None).unwrap();
        first.place().give_up().unwrap();
        let aside = first.place().aside();
        // In another process, the second would have another path aside.
        fs::rename(&aside, directory.join("first.sock")).unwrap();
        let second = AdminSocket::bind_aside(&path, None).unwrap();
        UnixStream::connect(&path).unwrap();
        assert!(first.listener.accept().is_ok() && second.listener.accept().is_err());
        second.place().take().unwrap();
        UnixStream::connect(&path).unwrap();
        assert!(first.listener.accept().is_err() && second.listener.accept().is_ok());
        drop(first);
        assert!(path.exists(), "the first removes its own file");
        drop(second);
        assert!(!path.exists());
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
