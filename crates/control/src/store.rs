// SPDX-License-Identifier: Apache-2.0
//! What a controller stores across restarts: the version of the last plan, the keys that nodes sent, the
//! time, and what the API has set. One file, which is whole at every moment.
//!
//! A file that cannot be read is moved aside and a new one begun. The epoch then grows by what nodes
//! hold ([`crate::rib::Rib::advance_epoch`]).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use crate::message::{NodeNumber, PlanVersion, Prefix};
use crate::time::StoredClock;

/// How what is in the tables is written. Another number is another program's.
const FORMAT: u64 = 1;

/// [`FORMAT`], the version of the last plan and the time that was sent, by name.
const PLAN: TableDefinition<'_, &str, u64> = TableDefinition::new("plan");
/// X25519 keys of nodes.
const KEYS: TableDefinition<'_, NodeNumber, [u8; 32]> = TableDefinition::new("keys");
/// Address and bits of prefixes, and whose they are.
const PREFIXES: TableDefinition<'_, ([u8; 16], u8), NodeNumber> = TableDefinition::new("prefixes");

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another controller uses it.
    #[error("{} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// It could not be read, or not be written.
    #[error("{what} {}: {why}", path.display())]
    Failed {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it did not work.
        why: String,
    },
}

/// A store, open.
#[derive(Debug)]
pub struct Store {
    database: Database,
    path: PathBuf,
}

/// What a store held when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The last plan.
    pub plan_version: PlanVersion,
    /// The X25519 key that each node sent first.
    pub keys: BTreeMap<NodeNumber, [u8; 32]>,
    /// What the API has set.
    pub prefixes: BTreeMap<Prefix, NodeNumber>,
    /// The time that was sent to nodes, if any was.
    pub time: Option<StoredClock>,
}

/// A store that could not be read.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    /// Why.
    pub why: String,
    /// Where it is now.
    pub aside: PathBuf,
}

impl Store {
    /// Opens a store, or begins one: in place of the one that is there, if that cannot be read.
    ///
    /// # Errors
    /// Another process has it, or the file cannot be made or moved.
    pub fn open(path: &Path) -> Result<(Self, Contents, Option<Broken>), Error> {
        match Self::try_open(path) {
            Ok((store, contents)) => Ok((store, contents, None)),
            // The file may be sound: moving it aside would lose the keys that nodes sent first.
            Err(error @ (Error::InUse(_) | Error::Failed { what: "open", .. })) => Err(error),
            Err(error) => {
                let aside = move_aside(path)?;
                let why = error.to_string();
                let (store, contents) = Self::try_open(path)?;
                Ok((store, contents, Some(Broken { why, aside })))
            }
        }
    }

    fn try_open(path: &Path) -> Result<(Self, Contents), Error> {
        // The database would make a file where it may not look at one, or take a directory for broken.
        if let Err(error) = std::fs::metadata(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(failed("open", path)(error));
        }
        let database = Database::create(path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => Error::InUse(path.to_owned()),
            redb::DatabaseError::Storage(redb::StorageError::Io(error)) if is_refusal(&error) => {
                failed("open", path)(error)
            }
            error => failed("read", path)(error),
        })?;
        Self::of(database, path)
    }

    fn of(mut database: Database, path: &Path) -> Result<(Self, Contents), Error> {
        // Pages are trusted when they are looked at later, so every one is checked now.
        database.check_integrity().map_err(failed("read", path))?;
        let store = Self {
            database,
            path: path.to_owned(),
        };
        store.write("make", Self::make)?;
        let contents = store.read().map_err(|why| failed("read", path)(why))?;
        Ok((store, contents))
    }

    /// Stores the version of a plan. To be done before any node receives it.
    ///
    /// # Errors
    /// It could not be written; then the store holds the version before.
    pub fn save_plan(&mut self, plan_version: PlanVersion) -> Result<(), Error> {
        self.write("write", |transaction| {
            let mut plan = transaction.open_table(PLAN)?;
            plan.insert("epoch", plan_version.epoch)?;
            plan.insert("version", plan_version.version)?;
            Ok(())
        })
    }

    /// Remembers the key of a node, or forgets it.
    ///
    /// # Errors
    /// It could not be written.
    pub fn set_key(&mut self, node: NodeNumber, key: Option<[u8; 32]>) -> Result<(), Error> {
        self.write("write", |transaction| {
            let mut keys = transaction.open_table(KEYS)?;
            match key {
                Some(key) => keys.insert(node, key)?,
                None => keys.remove(node)?,
            };
            Ok(())
        })
    }

    /// Remembers what the API has set.
    ///
    /// # Errors
    /// It could not be written; then what was set before is remembered.
    pub fn set_prefixes(&mut self, all: &BTreeMap<Prefix, NodeNumber>) -> Result<(), Error> {
        self.write("write", |transaction| {
            let mut prefixes = transaction.open_table(PREFIXES)?;
            // In the same transaction: a crash leaves the former table or the new one.
            prefixes.retain(|_, _| false)?;
            for (prefix, node) in all {
                prefixes.insert((prefix.address, prefix.bits), *node)?;
            }
            Ok(())
        })
    }

    /// Remembers the time that was sent to nodes.
    ///
    /// # Errors
    /// It could not be written; then the former one is remembered.
    pub fn set_time(&mut self, time: StoredClock) -> Result<(), Error> {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.write("write", |transaction| {
            let mut plan = transaction.open_table(PLAN)?;
            plan.insert("sent_us", micros(time.sent))?;
            plan.insert("clock_us", micros(time.clock))?;
            Ok(())
        })
    }

    fn write(
        &self,
        what: &'static str,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), Error> {
        let all = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            change(&transaction)?;
            Ok(transaction.commit()?)
        };
        all().map_err(failed(what, &self.path))
    }

    /// Makes the tables of a new file.
    fn make(transaction: &WriteTransaction) -> Result<(), redb::Error> {
        transaction.open_table(KEYS)?;
        transaction.open_table(PREFIXES)?;
        let mut plan = transaction.open_table(PLAN)?;
        if plan.is_empty()? {
            plan.insert("format", FORMAT)?;
        }
        Ok(())
    }

    fn read(&self) -> Result<Contents, String> {
        let mut contents = Contents::default();
        self.read_tables(&mut contents)
            .map_err(|error| error.to_string())??;
        Ok(contents)
    }

    fn read_tables(&self, contents: &mut Contents) -> Result<Result<(), String>, redb::Error> {
        let transaction = self.database.begin_read()?;
        let plan = transaction.open_table(PLAN)?;
        let value = |name| -> Result<u64, redb::Error> {
            Ok(plan.get(name)?.map_or(0, |value| value.value()))
        };
        let format = value("format")?;
        if format != FORMAT {
            return Ok(Err(format!("it is of format {format}, not {FORMAT}")));
        }
        contents.plan_version = PlanVersion {
            epoch: value("epoch")?,
            version: value("version")?,
        };
        contents.time = match value("sent_us")? {
            0 => None,
            sent => Some(StoredClock {
                sent: Duration::from_micros(sent),
                clock: Duration::from_micros(value("clock_us")?),
            }),
        };
        for item in transaction.open_table(KEYS)?.iter()? {
            let (node, key) = item?;
            contents.keys.insert(node.value(), key.value());
        }
        for item in transaction.open_table(PREFIXES)?.iter()? {
            let (prefix, node) = item?;
            let (address, bits) = prefix.value();
            contents
                .prefixes
                .insert(Prefix { address, bits }, node.value());
        }
        Ok(Ok(()))
    }
}

fn failed<E: ToString>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
    let path = path.to_owned();
    move |why| Error::Failed {
        what,
        path,
        why: why.to_string(),
    }
}

/// Whether a file may be sound, but not for us.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::StorageFull
            | io::ErrorKind::IsADirectory
    )
}

/// Gives a file a name that is not taken.
fn move_aside(path: &Path) -> Result<PathBuf, Error> {
    let names = (1..).map(|number| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".broken-{number}"));
        PathBuf::from(name)
    });
    let mut free = names.filter(|name| !name.exists());
    let aside = free.next().expect("there are more numbers than files");
    std::fs::rename(path, &aside).map_err(failed("move aside", path))?;
    Ok(aside)
}

#[cfg(test)]
mod tests;
