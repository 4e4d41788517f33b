// SPDX-License-Identifier: Apache-2.0
//! The listeners of the control thread, bound before it starts so that their
//! errors stop the node.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The admin socket. Its file goes when it is dropped.
#[derive(Debug)]
pub(super) struct AdminSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Binds, replacing a file that a dead node left.
    pub(super) fn bind(path: &Path) -> anyhow::Result<Self> {
        if let Some(parent) = path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(parent);
            made.with_context(|| format!("create {}", parent.display()))?;
        }
        remove_stale(path)?;
        let bound = UnixListener::bind(path)
            .with_context(|| format!("bind the admin socket {}", path.display()))?;
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

/// Fails when a node answers at `path`.
pub(crate) fn ensure_alone(path: &Path) -> anyhow::Result<()> {
    if UnixStream::connect(path).is_ok() {
        bail!("another node runs here: it answers at {}", path.display());
    }
    Ok(())
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
        let first = AdminSocket::bind(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o660
        );
        let error = AdminSocket::bind(&path).unwrap_err().to_string();
        assert!(error.contains("another node runs here"), "{error}");
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        drop(AdminSocket::bind(&path).unwrap());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn other_files_are_kept() {
        let directory = directory("admin-file");
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("precious");
        fs::write(&path, "data").unwrap();
        let error = AdminSocket::bind(&path).unwrap_err().to_string();
        assert!(error.contains("is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
        fs::remove_dir_all(directory).unwrap();
    }
}
