//! A lab's directory, removed when the lab ends.
//!
//! `$XDG_RUNTIME_DIR/nearhop/NAME`, or `nearhop-UID/NAME` in the directory for temporary files if
//! that variable is not set. A variable that names an unusable directory is an error: with another
//! directory, commands with and without the variable would not find each other's labs. The lab holds
//! a file lock in it. A directory without a locked file belongs to a killed lab; the next start
//! removes it. Processes and namespaces end without such care.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::LabError;
use crate::merge;
use crate::spec::control_socket;

const LOCK: &str = "lock";

/// The name of a new lab.
#[derive(Clone, Copy, Debug)]
pub enum LabName<'a> {
    /// This name.
    Exactly(&'a str),
    /// This name, or the first of `stem-2`, `stem-3`, … that is free.
    Like(&'a str),
}

/// The directory of a running lab. Removed when this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    name: String,
    _lock: File,
}

impl StateDir {
    /// Makes a lab's directory, and removes those of killed labs.
    /// Fails if a lab of that name runs.
    pub fn create(base: &Path, name: LabName<'_>) -> Result<Self, LabError> {
        make_base(base)?;
        // One start at a time: a directory without a lock looks like that of a killed lab.
        let gate = base.join(LOCK);
        let _gate = lock(&gate).map_err(|cause| file_error(&gate, cause))?;
        remove_stale(base)?;
        match name {
            LabName::Exactly(name) => {
                Self::take(base, name)?.ok_or_else(|| LabError::Runs(name.to_owned()))
            }
            LabName::Like(stem) => {
                for n in 1.. {
                    let name = if n == 1 { stem.to_owned() } else { format!("{stem}-{n}") };
                    if let Some(taken) = Self::take(base, &name)? {
                        return Ok(taken);
                    }
                }
                unreachable!("there are more numbers than labs")
            }
        }
    }

    fn take(base: &Path, name: &str) -> Result<Option<Self>, LabError> {
        let path = base.join(name);
        match private_dir().create(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists && is_held(&path) => {
                return Ok(None);
            }
            made => made.map_err(|cause| file_error(&path, cause))?,
        }
        let file = path.join(LOCK);
        let lock = lock(&file).map_err(|cause| file_error(&file, cause))?;
        Ok(Some(Self { path, name: name.to_owned(), _lock: lock }))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // The next start removes the rest.
        let _ = remove(&self.path);
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let file = File::create(path)?;
    file.lock()?;
    Ok(file)
}

/// The directory of this user's labs.
/// Fails if `XDG_RUNTIME_DIR` is set to a directory that this user cannot use.
pub fn base() -> Result<PathBuf, LabError> {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(runtime) => {
            let runtime = PathBuf::from(runtime);
            match why_unusable(&runtime) {
                None => Ok(runtime.join("nearhop")),
                Some(why) => Err(runtime_dir_error(&runtime, why)),
            }
        }
        None => Ok(fallback()),
    }
}

/// The directory of this user's labs without `XDG_RUNTIME_DIR`.
fn fallback() -> PathBuf {
    std::env::temp_dir().join(format!("nearhop-{}", nix::unistd::geteuid()))
}

/// Why the directory cannot be this user's runtime directory.
fn why_unusable(runtime: &Path) -> Option<String> {
    let found = match fs::metadata(runtime) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return Some("does not exist".to_owned());
        }
        Err(cause) => return Some(format!("cannot be used ({cause})")),
        Ok(found) => found,
    };
    let uid = nix::unistd::geteuid().as_raw();
    if !found.is_dir() {
        Some("is not a directory".to_owned())
    } else if found.uid() != uid {
        Some(format!("belongs to the user with UID {}, not to UID {uid}", found.uid()))
    } else {
        None
    }
}

fn runtime_dir_error(path: &Path, why: String) -> LabError {
    LabError::RuntimeDir { path: path.to_owned(), why, fallback: fallback() }
}

/// The names of the running labs.
pub fn running(base: &Path) -> Result<Vec<String>, LabError> {
    let mut names: Vec<String> = labs(base)?
        .into_iter()
        .filter(|path| is_held(path) && control_socket(path).exists())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn labs(base: &Path) -> Result<Vec<PathBuf>, LabError> {
    let failed = |cause| file_error(base, cause);
    let entries = match fs::read_dir(base) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let paths: Result<Vec<PathBuf>, LabError> =
        entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect();
    Ok(paths?.into_iter().filter(|path| path.is_dir()).collect())
}

fn is_held(lab: &Path) -> bool {
    let lock = File::open(lab.join(LOCK));
    lock.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes the directories of killed labs. Failures are ignored.
fn remove_stale(base: &Path) -> Result<(), LabError> {
    for lab in labs(base)?.iter().filter(|lab| !is_held(lab)) {
        let _ = remove(lab);
    }
    Ok(())
}

/// Retries, because processes of a killed lab may still write, and Pods may have made directories
/// read-only.
fn remove(path: &Path) -> io::Result<()> {
    merge::take_out(path);
    for _ in 0..5 {
        if fs::remove_dir_all(path).is_ok() {
            return Ok(());
        }
        make_writable(path);
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::remove_dir_all(path)
}

fn make_writable(directory: &Path) {
    let _ = fs::set_permissions(directory, Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

/// Refuses a directory that another user made in a shared directory.
fn make_base(base: &Path) -> Result<(), LabError> {
    let failed = |cause| file_error(base, cause);
    match private_dir().create(base) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
            // Without the variable the parent is the directory for temporary files.
            let runtime = base.parent().filter(|_| *base != fallback());
            return Err(match runtime {
                Some(runtime) => runtime_dir_error(runtime, format!("cannot be written ({cause})")),
                None => failed(cause),
            });
        }
        _ => {}
    }
    let found = fs::symlink_metadata(base).map_err(failed)?;
    if !found.is_dir() || found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(failed(io::Error::other(
            "not a directory owned by this user. Cure: set XDG_RUNTIME_DIR to one that is",
        )));
    }
    Ok(())
}

/// Makes directories that only their owner can read.
pub(crate) fn private_dir() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), LabError> {
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|cause| file_error(path, cause))
}

fn file_error(path: &Path, cause: io::Error) -> LabError {
    LabError::File { path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_free_again_after_the_lab() {
        let scratch = tempfile::tempdir().expect("a directory");
        let base = scratch.path().join("labs");
        let create = |name| StateDir::create(&base, name);
        let one = create(LabName::Like("lab")).expect("free");
        let two = create(LabName::Like("lab")).expect("free");
        assert_eq!((one.name(), two.name()), ("lab", "lab-2"));
        assert!(running(&base).expect("readable").is_empty(), "no control socket yet");
        for lab in [&one, &two] {
            fs::write(control_socket(lab.path()), "").expect("writable");
        }
        assert_eq!(running(&base).expect("readable"), ["lab", "lab-2"]);
        let said = create(LabName::Exactly("lab")).expect_err("the lab runs").to_string();
        assert!(said.contains("`lab` runs already"), "{said}");
        drop(one);
        assert_eq!(running(&base).expect("readable"), ["lab-2"]);
        assert_eq!(create(LabName::Exactly("lab")).expect("free again").name(), "lab");
    }

    #[test]
    fn directories_of_killed_labs_are_removed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let base = scratch.path().join("labs");
        let running = StateDir::create(&base, LabName::Exactly("running")).expect("free");
        let killed = base.join("killed");
        fs::create_dir(&killed).expect("free");
        fs::write(killed.join(LOCK), "").expect("writable");
        fs::write(killed.join("data"), "x").expect("writable");
        fs::create_dir(killed.join("locked")).expect("writable");
        fs::write(killed.join("locked/file"), "x").expect("writable");
        fs::set_permissions(killed.join("locked"), Permissions::from_mode(0o555)).expect("ours");
        fs::create_dir(base.join("half-made")).expect("free");
        let _next = StateDir::create(&base, LabName::Like("lab")).expect("free");
        assert!(!killed.exists() && running.path().exists());
        assert!(!base.join("half-made").exists());
    }

    #[test]
    fn an_unusable_runtime_directory_is_explained() {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = scratch.path().join("file");
        fs::write(&file, "").expect("writable");
        assert_eq!(why_unusable(scratch.path()), None);
        assert_eq!(why_unusable(&file).as_deref(), Some("is not a directory"));
        let missing = why_unusable(&scratch.path().join("none"));
        assert_eq!(missing.as_deref(), Some("does not exist"));
        if nix::unistd::geteuid().as_raw() != 0 {
            let foreign = why_unusable(Path::new("/")).expect("it belongs to root");
            assert!(foreign.contains("belongs to the user with UID 0"), "{foreign}");
        }
    }

    #[test]
    fn foreign_base_directory_is_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        let base = scratch.path().join("labs");
        fs::write(&base, "not a directory").expect("writable");
        let error = StateDir::create(&base, LabName::Like("lab")).expect_err("a file").to_string();
        assert!(error.contains("XDG_RUNTIME_DIR"), "{error}");
    }
}
