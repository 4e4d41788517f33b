// SPDX-License-Identifier: Apache-2.0

use std::fs;
use std::sync::{Arc, Mutex};

use super::*;
use posthaste_testkit::{Rng, simulate};

/// A directory of its own, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("posthaste-store-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("controller.redb")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(path: &Path) -> (Store, Contents) {
    let (store, contents, broken) = Store::open(path).unwrap();
    assert_eq!(broken, None);
    (store, contents)
}

fn plan_version(version: u64) -> PlanVersion {
    PlanVersion { epoch: 3, version }
}

/// Nothing is known.
fn check_new(contents: &Contents) {
    let Contents {
        plan_version,
        keys,
        prefixes,
        time,
    } = contents;
    assert_eq!(*plan_version, PlanVersion::default());
    assert!(keys.is_empty() && prefixes.is_empty() && time.is_none());
}

#[test]
fn store_round_trip() {
    let place = Place::new("again");
    let (mut store, contents) = open(&place.file());
    check_new(&contents);
    store.save_plan(plan_version(1)).unwrap();
    store.save_plan(plan_version(2)).unwrap();
    store.set_key(5, Some([9; 32])).unwrap();
    store.set_key(6, Some([8; 32])).unwrap();
    store.set_key(6, None).unwrap();
    let prefix = Prefix {
        address: [0; 16],
        bits: 96,
    };
    store.set_prefixes(&[(prefix, 4)].into()).unwrap();
    assert!(matches!(Store::open(&place.file()), Err(Error::InUse(_))));
    drop(store);
    let (_, contents) = open(&place.file());
    let expected = Contents {
        plan_version: plan_version(2),
        keys: [(5, [9; 32])].into(),
        prefixes: [(prefix, 4)].into(),
        time: None,
    };
    assert_eq!(contents, expected);
}

/// Copies of the file as it is after each plan, as a process that is killed would leave it, and with
/// anything missing from its end, or another byte somewhere: what is opened is a plan that was saved, or
/// the file is moved aside. Nothing else is ever taken for what was written.
// promise: V9
#[test]
fn kill_loses_nothing() {
    let place = Place::new("kill");
    let copy = place.0.join("copy.redb");
    let mut aside = 0;
    simulate(4, |mut rng| {
        let _ = fs::remove_file(place.file());
        let (mut store, _) = open(&place.file());
        for version in 1..12 {
            store.save_plan(plan_version(version)).unwrap();
            store.set_key(version, Some([9; 32])).unwrap();
            // As it is: everything is there.
            fs::copy(place.file(), &copy).unwrap();
            let (_, contents) = open(&copy);
            check(&contents, version);
            assert_eq!(contents.plan_version.version, version);
            // Cut off, and changed.
            for spoil in [cut, flip] {
                fs::copy(place.file(), &copy).unwrap();
                spoil(&copy, &mut rng);
                let (store, contents, broken) = Store::open(&copy).unwrap();
                drop(store);
                if let Some(Broken { why, aside: name }) = broken {
                    check_new(&contents);
                    assert!(why.contains("copy.redb"), "{why}");
                    fs::remove_file(name).unwrap();
                    aside += 1;
                } else {
                    check(&contents, version);
                }
                fs::remove_file(&copy).unwrap();
            }
        }
    });
    assert!(aside > 10, "{aside} moved aside");
}

/// A file in memory, with a copy of each of its states after a write.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    bytes: Vec<u8>,
    states: Vec<Vec<u8>>,
}

impl Recorder {
    fn with<T>(&self, what: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
        let mut inner = self.0.lock().unwrap();
        let result = what(&mut inner.bytes);
        let copy = inner.bytes.clone();
        if inner.states.last() != Some(&copy) {
            inner.states.push(copy);
        }
        Ok(result)
    }
}

impl redb::StorageBackend for Recorder {
    fn len(&self) -> io::Result<u64> {
        self.with(|bytes| bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.with(|bytes| out.copy_from_slice(&bytes[start..start + out.len()]))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.with(|bytes| bytes.resize(usize::try_from(length).unwrap(), 0))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.with(|bytes| bytes[start..start + data.len()].copy_from_slice(data))
    }
}

/// Killed between any two writes: the plan before the kill is there, or the one that was being written.
// promise: V9
#[test]
fn kill_between_writes() {
    let place = Place::new("writes");
    let recorder = Recorder::default();
    let database = Database::builder()
        .create_with_backend(recorder.clone())
        .unwrap();
    let (mut store, _) = Store::of(database, &place.file()).unwrap();
    let states = || std::mem::take(&mut recorder.0.lock().unwrap().states);
    states();
    let mut opened = 0;
    for version in 1..6 {
        store.save_plan(plan_version(version)).unwrap();
        store.set_key(version, Some([9; 32])).unwrap();
        for state in states() {
            fs::write(place.file(), state).unwrap();
            let (_, contents) = open(&place.file());
            check(&contents, version);
            assert!(contents.plan_version.version + 1 >= version);
            opened += 1;
        }
    }
    assert!(opened > 20, "{opened} states");
}

/// A plan that was saved, at the latest the one of `version`, and what was stored before it.
fn check(contents: &Contents, version: u64) {
    let plan = contents.plan_version;
    assert!(plan.version <= version);
    assert!(plan == PlanVersion::default() || plan.epoch == 3);
    let keys = contents.keys.len() as u64;
    assert!(keys == plan.version || keys + 1 == plan.version);
}

fn cut(path: &Path, rng: &mut Rng) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let length = u32::try_from(file.metadata().unwrap().len()).unwrap();
    file.set_len(rng.below(length).into()).unwrap();
}

fn flip(path: &Path, rng: &mut Rng) {
    let mut bytes = fs::read(path).unwrap();
    let place = rng.below(bytes.len());
    bytes[place] ^= 1 << rng.below(8);
    fs::write(path, bytes).unwrap();
}

// promise: V9
#[test]
fn foreign_file_moved_aside() {
    let place = Place::new("other");
    fs::write(place.file(), b"this is no store").unwrap();
    let (store, contents, broken) = Store::open(&place.file()).unwrap();
    check_new(&contents);
    let aside = broken.unwrap().aside;
    assert_eq!(fs::read(&aside).unwrap(), b"this is no store");
    drop(store);
    open(&place.file());
    let missing = place.0.join("missing").join("store");
    let error = Store::open(&missing).unwrap_err().to_string();
    assert!(
        error.contains("open") && error.contains("missing"),
        "{error}"
    );
}

// promise: S15
#[test]
fn clock_is_restored() {
    let place = Place::new("time");
    let at = |seconds| Duration::from_secs(seconds);
    for sent in [at(1_700_000_000), at(1_700_000_060)] {
        let clock = sent - at(3_600);
        open(&place.file())
            .0
            .set_time(StoredClock { sent, clock })
            .unwrap();
        assert_eq!(
            open(&place.file()).1.time,
            Some(StoredClock { sent, clock })
        );
    }
}
