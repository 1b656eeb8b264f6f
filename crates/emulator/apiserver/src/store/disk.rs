//! The copy on disk: one redb file. A commit returns when the file system has it.
//!
//! After a disk error redb refuses everything until the file is opened again, and the failed commit
//! may or may not be in the file. So [`Disk::reopen`] opens it, checks that there is room to write,
//! and writes the state of memory: what clients have seen, and no more.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::object::{Content, Name, ObjectRef, Stored};
use super::state::State;
use super::{FieldsOf, OpenError};

const OBJECTS: TableDefinition<'_, (&str, &str, &str), (u64, &[u8])> =
    TableDefinition::new("objects");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const TEXTS: TableDefinition<'_, &str, &str> = TableDefinition::new("texts");
const VERSION: &str = "resourceVersion";
const LIFE: &str = "life";
/// Written and removed to check the free space.
const PROBE: &str = "probe";
/// The free space that a reopened disk must have, at least and at most.
const PROBE_BYTES: std::ops::RangeInclusive<usize> = 64 * 1024..=16 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Disk {
    /// `None` while it cannot be opened.
    database: Option<Database>,
    path: PathBuf,
    life: String,
    /// The newest version of a commit, successful or not.
    tried: u64,
    /// The size of the last commit.
    last_bytes: usize,
}

pub(super) struct DiskWrite<'a> {
    pub(super) key: &'a ObjectRef,
    /// `None` removes it.
    pub(super) content: Option<(u64, &'a Bytes)>,
}

impl Disk {
    pub(super) fn open(directory: &Path) -> Result<Self, OpenError> {
        let at = |why: io::Error| OpenError::Directory(directory.to_owned(), why);
        // The file holds Secrets.
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at)?;
        let path = directory.join("objects.redb");
        make_private(&path).map_err(at)?;
        match Database::create(&path) {
            Ok(database) => Ok(Self { database: Some(database), path, ..Self::default() }),
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(OpenError::InUse(directory.to_owned())),
            Err(error) => Err(OpenError::Broken(path, error.to_string())),
        }
    }

    /// Reads everything into memory; returns the id of the store.
    pub(super) fn load(
        &mut self,
        state: &mut State,
        fields_of: FieldsOf,
    ) -> Result<String, OpenError> {
        let broken = |reason: String| OpenError::Broken(self.path.clone(), reason);
        let life = self
            .load_tables(state, fields_of)
            .map_err(|error| broken(error.to_string()))?
            .ok_or_else(|| broken("it holds an object that is not JSON".to_owned()))?;
        self.life.clone_from(&life);
        self.tried = state.version;
        Ok(life)
    }

    /// `None` if an object cannot be read.
    fn load_tables(
        &self,
        state: &mut State,
        fields_of: FieldsOf,
    ) -> Result<Option<String>, redb::Error> {
        let database = self.database()?;
        let write = database.begin_write()?;
        let life = {
            write.open_table(OBJECTS)?;
            write.open_table(NUMBERS)?;
            let mut texts = write.open_table(TEXTS)?;
            let known = texts.get(LIFE)?.map(|life| life.value().to_owned());
            let life = known.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
            texts.insert(LIFE, life.as_str())?;
            life
        };
        write.commit()?;
        let read = database.begin_read()?;
        let mut newest = read.open_table(NUMBERS)?.get(VERSION)?.map_or(0, |number| number.value());
        for entry in read.open_table(OBJECTS)?.iter()? {
            let (key, value) = entry?;
            let ((storage, namespace, name), (version, tail)) = (key.value(), value.value());
            let fields = |object: &_| fields_of(storage, object);
            let Some(content) = Content::from_tail(Bytes::copy_from_slice(tail), fields) else {
                return Ok(None);
            };
            newest = newest.max(version);
            state
                .load(storage, Stored::new(version, Name::new(namespace, name), Arc::new(content)));
        }
        state.loaded(newest);
        Ok(Some(life))
    }

    /// Writes all of these and the newest version, or nothing. After an error only
    /// [`Disk::reopen`] works.
    pub(super) fn commit<'a>(
        &mut self,
        version: u64,
        writes: impl Iterator<Item = DiskWrite<'a>>,
    ) -> Result<(), String> {
        self.tried = self.tried.max(version);
        let mut bytes = 0;
        let counted = writes.inspect(|write| {
            bytes += write.content.map_or(0, |(_, tail)| tail.len());
        });
        let committed = self.try_commit(version, counted);
        self.last_bytes = bytes;
        committed.map_err(|error| self.explain(&error))
    }

    fn try_commit<'a>(
        &self,
        version: u64,
        writes: impl Iterator<Item = DiskWrite<'a>>,
    ) -> Result<(), redb::Error> {
        let transaction = self.database()?.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            for DiskWrite { key, content } in writes {
                let at = (&*key.storage, &*key.name.namespace, &*key.name.name);
                match content {
                    Some((version, tail)) => objects.insert(at, (version, &tail[..]))?,
                    None => objects.remove(at)?,
                };
            }
            transaction.open_table(NUMBERS)?.insert(VERSION, version)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Opens the file again after an error and makes it hold these objects at this version.
    pub(super) fn reopen(
        &mut self,
        version: u64,
        objects: &[(Arc<str>, Arc<Stored>)],
    ) -> Result<(), String> {
        // The file is locked until the old one is closed.
        self.database = None;
        make_private(&self.path).map_err(|error| self.explain(&error))?;
        let database = Database::create(&self.path).map_err(|error| self.explain(&error))?;
        self.check_ours(&database)?;
        let room = self.last_bytes.clamp(*PROBE_BYTES.start(), *PROBE_BYTES.end());
        restore(&database, &self.life, version, objects, room)
            .map_err(|error| self.explain(&error))?;
        self.database = Some(database);
        Ok(())
    }

    /// Another process may have used the file while it was closed.
    fn check_ours(&self, database: &Database) -> Result<(), String> {
        let (life, version) = read_marks(database).map_err(|error| self.explain(&error))?;
        if life.is_some_and(|life| life != self.life) || version > self.tried {
            return Err(format!(
                "{} was changed by another process; restart nearhop apiserver to use what it holds now",
                self.path.display()
            ));
        }
        Ok(())
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::PreviousIo)
    }

    fn explain(&self, error: &dyn std::fmt::Display) -> String {
        format!("cannot write {}: {error}", self.path.display())
    }
}

/// Creates the file if it is missing; only its owner can read it.
fn make_private(path: &Path) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
}

/// The store's id and the newest version in a file. A new file has neither.
fn read_marks(database: &Database) -> Result<(Option<String>, u64), redb::Error> {
    let write = database.begin_write()?;
    let marks = {
        let life = write.open_table(TEXTS)?.get(LIFE)?.map(|life| life.value().to_owned());
        let version = write.open_table(NUMBERS)?.get(VERSION)?.map_or(0, |number| number.value());
        (life, version)
    };
    write.abort()?;
    Ok(marks)
}

/// Makes a file hold these objects, and checks that `room` more bytes can be written.
fn restore(
    database: &Database,
    life: &str,
    version: u64,
    objects: &[(Arc<str>, Arc<Stored>)],
    room: usize,
) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        let mut table = write.open_table(OBJECTS)?;
        let wanted = |(storage, object): &(Arc<str>, Arc<Stored>)| {
            let Name { namespace, name } = &object.name;
            ((storage.to_string(), namespace.to_string(), name.to_string()), Arc::clone(object))
        };
        let mut missing: BTreeMap<(String, String, String), Arc<Stored>> =
            objects.iter().map(wanted).collect();
        let mut gone = Vec::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            let (storage, namespace, name) = key.value();
            let key = (storage.to_owned(), namespace.to_owned(), name.to_owned());
            match missing.get(&key) {
                Some(object) if object.version == value.value().0 => {
                    missing.remove(&key);
                }
                Some(_) => {}
                None => gone.push(key),
            }
        }
        for (storage, namespace, name) in &gone {
            table.remove((storage.as_str(), namespace.as_str(), name.as_str()))?;
        }
        for ((storage, namespace, name), object) in &missing {
            let at = (storage.as_str(), namespace.as_str(), name.as_str());
            table.insert(at, (object.version, &object.content.tail()[..]))?;
        }
        write.open_table(NUMBERS)?.insert(VERSION, version)?;
        let mut texts = write.open_table(TEXTS)?;
        texts.insert(LIFE, life)?;
        texts.insert(PROBE, "x".repeat(room).as_str())?;
    }
    write.commit()?;
    let write = database.begin_write()?;
    write.open_table(TEXTS)?.remove(PROBE)?;
    write.commit()?;
    Ok(())
}
