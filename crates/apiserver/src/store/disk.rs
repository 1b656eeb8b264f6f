//! The copy on disk: one redb file. A commit returns when the file system has it.

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

/// The open file.
pub(super) struct Disk {
    database: Database,
    path: PathBuf,
}

/// One change of the file.
pub(super) struct DiskWrite<'a> {
    pub(super) key: &'a ObjectRef,
    /// `None` removes it.
    pub(super) content: Option<(u64, &'a Bytes)>,
}

impl Disk {
    pub(super) fn open(directory: &Path) -> Result<Self, OpenError> {
        let at = |why: io::Error| OpenError::Directory { path: directory.to_owned(), why };
        // Secrets are in there: nobody else may look.
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at)?;
        let path = directory.join("objects.redb");
        let mut private = OpenOptions::new();
        private.create(true).append(true).mode(0o600).open(&path).map_err(at)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(at)?;
        match Database::create(&path) {
            Ok(database) => Ok(Self { database, path }),
            Err(DatabaseError::DatabaseAlreadyOpen) => Err(OpenError::InUse(directory.to_owned())),
            Err(error) => Err(OpenError::Broken { path, reason: error.to_string() }),
        }
    }

    /// Reads everything into memory; the name of the store's life.
    pub(super) fn load(&self, state: &mut State, fields_of: FieldsOf) -> Result<String, OpenError> {
        let broken = |reason: String| OpenError::Broken { path: self.path.clone(), reason };
        self.load_tables(state, fields_of)
            .map_err(|error| broken(error.to_string()))?
            .ok_or_else(|| broken("it holds an object that is not JSON".to_owned()))
    }

    /// `None` if an object cannot be read.
    fn load_tables(
        &self,
        state: &mut State,
        fields_of: FieldsOf,
    ) -> Result<Option<String>, redb::Error> {
        let write = self.database.begin_write()?;
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
        let read = self.database.begin_read()?;
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

    /// All of these and the newest version, or nothing.
    pub(super) fn commit<'a>(
        &self,
        version: u64,
        writes: impl Iterator<Item = DiskWrite<'a>>,
    ) -> Result<(), String> {
        self.try_commit(version, writes)
            .map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }

    fn try_commit<'a>(
        &self,
        version: u64,
        writes: impl Iterator<Item = DiskWrite<'a>>,
    ) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
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
}
