//! Merges the kubeconfig of a lab into the user's, as the context `nearhop-NAME`, and takes it out
//! again when the lab ends.
//!
//! The file is read as plain data, so that entries and fields that this program does not know stay.
//! It is locked as kubectl locks it (`FILE.lock`), and replaced as a whole. A list in the lab's
//! directory has the changed files and their earlier current contexts.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::LabError;
use crate::state::{private_dir, write_private};

/// The list in the lab's directory.
const MERGED: &str = "merged.json";

/// How long another program may hold the lock.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// How many names of a new file are tried.
const MAX_ATTEMPTS: u32 = 100;

/// The lists of a kubeconfig.
const LISTS: [&str; 3] = ["clusters", "users", "contexts"];

/// A changed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The file.
    pub path: PathBuf,
    /// The context's name.
    pub context: String,
    /// Its current context before.
    earlier: Option<String>,
}

/// The file that kubectl changes: the first of `$KUBECONFIG`, or `~/.kube/config`.
pub fn user_kubeconfig() -> Option<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let first = std::env::split_paths(&listed).find(|path| !path.as_os_str().is_empty());
    first.or_else(|| {
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
        Some(PathBuf::from(home).join(".kube/config"))
    })
}

/// Merges the kubeconfig of the lab `name`, whose directory is `state`, into a file, and makes it the
/// current context.
pub fn merge(state: &Path, name: &str, into: &Path) -> Result<Merged, LabError> {
    let own = state.join("kubeconfig");
    if fs::canonicalize(into).ok() == fs::canonicalize(&own).ok() && own.exists() {
        let why = "it is the lab's own kubeconfig".to_owned();
        let cure = "unset KUBECONFIG to merge into ~/.kube/config";
        return Err(LabError::Merge { path: into.to_owned(), why, cure });
    }
    let file = Locked::open(into)?;
    let lab = read(&own)?;
    let mut config = read(&file.path)?;
    let context = format!("nearhop-{name}");
    let mut merged = merged_into(state);
    let before = config["current-context"].as_str().map(str::to_owned);
    if has_foreign_entries(&config, &context) {
        let why = format!("it has entries named {context} that are not of a lab");
        let cure = "rename them, or give the lab another --name";
        return Err(LabError::Merge { path: into.to_owned(), why, cure });
    }
    add(&mut config, &lab, &context).map_err(|why| LabError::Merge {
        path: into.to_owned(),
        why,
        cure: BROKEN,
    })?;
    let known = merged.iter().find(|one| one.path == file.path).cloned();
    let one = known.unwrap_or_else(|| {
        let one = Merged { path: file.path.clone(), context: context.clone(), earlier: before };
        merged.push(one.clone());
        one
    });
    // First the list: if the lab ends now, nothing is taken out that is not there.
    let text = serde_json::to_string(&merged).expect("a list of paths is plain data");
    write_private(&state.join(MERGED), &text)?;
    file.write(&config)?;
    Ok(one)
}

const BROKEN: &str = "repair it (`kubectl config view` must be able to read it)";

/// The files into which a lab's kubeconfig was merged.
pub fn merged_into(state: &Path) -> Vec<Merged> {
    let text = fs::read_to_string(state.join(MERGED)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Takes the context of a lab out of all files again. Failures do not delay the end of the lab;
/// `lab down` looks at the files and names them.
pub(crate) fn take_out(state: &Path) {
    for one in merged_into(state) {
        let _ = take_out_of(&one);
    }
}

fn take_out_of(one: &Merged) -> Result<(), LabError> {
    if !one.path.exists() {
        return Ok(());
    }
    let file = Locked::open(&one.path)?;
    let mut config = read(&file.path)?;
    match remove(&mut config, &one.context, one.earlier.as_deref()) {
        Removal::Changed => file.write(&config),
        // Writing would remove the comments of a user for nothing.
        Removal::NothingThere => Ok(()),
    }
}

/// Whether a file still has entries of the lab, or cannot be read.
pub fn is_left(one: &Merged) -> bool {
    let Ok(mut config) = read(&one.path) else { return true };
    remove(&mut config, &one.context, None) == Removal::Changed
}

/// Marks the clusters of labs: entries of a lab that was killed are replaced, those of the user are
/// not. kubectl keeps extensions.
const MARK: &str = "nearhop.dev/lab";

/// Whether a file has entries of this name, and their cluster is not that of a lab.
fn has_foreign_entries(config: &Value, name: &str) -> bool {
    let entries = |list: &str| config[list].as_array().into_iter().flatten();
    let named = |list: &str| entries(list).find(|item| item["name"] == name);
    let is_marked = named("clusters").is_some_and(|item| {
        let marks = item["cluster"]["extensions"].as_array();
        marks.is_some_and(|all| all.iter().any(|one| one["name"] == MARK))
    });
    !is_marked && LISTS.into_iter().any(|list| named(list).is_some())
}

/// Adds the only cluster, user and context of a lab under another name.
fn add(config: &mut Value, lab: &Value, name: &str) -> Result<(), String> {
    if config.is_null() {
        *config = json!({"apiVersion": "v1", "kind": "Config", "preferences": {}});
    }
    if !config.is_object() {
        return Err("it is not a kubeconfig".to_owned());
    }
    for (list, field) in LISTS.into_iter().zip(["cluster", "user", "context"]) {
        if config[list].is_null() {
            config[list] = json!([]);
        }
        let items = config[list].as_array_mut().ok_or(format!("`{list}` is not a list"))?;
        items.retain(|item| item["name"] != name);
        let mut body = lab[list][0][field].clone();
        match list {
            "contexts" => {
                body["cluster"] = name.into();
                body["user"] = name.into();
            }
            "clusters" => {
                body["extensions"] = json!([{"name": MARK, "extension": {"name": name}}]);
            }
            _ => {}
        }
        items.push(json!({"name": name, field: body}));
    }
    config["current-context"] = name.into();
    Ok(())
}

/// Whether a file had entries of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    Changed,
    NothingThere,
}

/// Removes the entries of this name; `earlier` becomes the current context again.
fn remove(config: &mut Value, name: &str, earlier: Option<&str>) -> Removal {
    let mut removal = Removal::NothingThere;
    for list in LISTS {
        if let Some(items) = config.get_mut(list).and_then(Value::as_array_mut) {
            let before = items.len();
            items.retain(|item| item["name"] != name);
            if items.len() < before {
                removal = Removal::Changed;
            }
        }
    }
    if config["current-context"] == name {
        removal = Removal::Changed;
        let there = |context: &&str| {
            let contexts = config["contexts"].as_array();
            contexts.is_some_and(|all| all.iter().any(|one| one["name"] == **context))
        };
        let earlier = earlier.filter(there).unwrap_or_default().to_owned();
        config["current-context"] = earlier.into();
    }
    removal
}

fn read(path: &Path) -> Result<Value, LabError> {
    let text = match fs::read_to_string(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Value::Null),
        text => text.map_err(|cause| LabError::File { path: path.to_owned(), cause })?,
    };
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(&text).map_err(|error| LabError::Merge {
        path: path.to_owned(),
        why: format!("it is not YAML: {error}"),
        cure: BROKEN,
    })
}

/// A file that kubectl does not change at the same time.
struct Locked {
    /// The file, without symbolic links.
    path: PathBuf,
    lock: PathBuf,
}

impl Locked {
    fn open(path: &Path) -> Result<Self, LabError> {
        let failed = |path: &Path, cause| LabError::File { path: path.to_owned(), cause };
        // `lab up`, which takes the context out again, may run in another directory.
        let path = std::path::absolute(path).map_err(|cause| failed(path, cause))?;
        let path = fs::canonicalize(&path).unwrap_or(path);
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            private_dir().recursive(true).create(parent).map_err(|cause| failed(parent, cause))?;
        }
        let mut lock = path.clone().into_os_string();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        let deadline = Instant::now() + PATIENCE;
        loop {
            match File::options().write(true).create_new(true).mode(0o600).open(&lock) {
                Ok(_) => return Ok(Self { path, lock }),
                Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(&lock, cause));
                }
                Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err(_) => {
                    let why = format!("another program has locked it ({})", lock.display());
                    let cure = "wait for that program; if none runs, remove the lock file";
                    return Err(LabError::Merge { path, why, cure });
                }
            }
        }
    }

    /// Replaces the file; mode and owner stay.
    fn write(&self, config: &Value) -> Result<(), LabError> {
        // Certificates are one line, as kubectl writes them.
        let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
        let text = serde_saphyr::to_string_with_options(config, options);
        let mut text = text.map_err(|error| LabError::Merge {
            path: self.path.clone(),
            why: error.to_string(),
            cure: BROKEN,
        })?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        self.replace(&text).map_err(|cause| LabError::File { path: self.path.clone(), cause })
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let before = fs::metadata(&self.path).ok();
        let (next, mut file) = self.create_beside()?;
        let written = (|| {
            let mut mode = 0o600;
            if let Some(before) = &before {
                mode = before.mode() & 0o7777;
                let now = file.metadata()?;
                if (now.uid(), now.gid()) != (before.uid(), before.gid()) {
                    fchown(&file, Some(before.uid()), Some(before.gid()))?;
                }
            }
            file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&next, &self.path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&next);
        }
        written
    }

    /// A new file for its owner only. Never an existing one: in a directory of several users that
    /// may be a link to another file, or another user's.
    fn create_beside(&self) -> io::Result<(PathBuf, File)> {
        let mut attempt = 0;
        loop {
            let mut next = self.path.clone().into_os_string();
            next.push(format!(".nearhop-{}-{attempt}", std::process::id()));
            let next = PathBuf::from(next);
            match File::options().write(true).create_new(true).mode(0o600).open(&next) {
                Err(cause)
                    if cause.kind() == io::ErrorKind::AlreadyExists && attempt < MAX_ATTEMPTS =>
                {
                    attempt += 1;
                }
                opened => return opened.map(|file| (next, file)),
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A lock that stays is reported by the next program.
        let _ = fs::remove_file(&self.lock);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const LAB: &str = "\
apiVersion: v1
kind: Config
current-context: nearhop
clusters: [{name: nearhop, cluster: {server: 'https://127.0.0.1:1', tls-server-name: localhost}}]
users: [{name: nearhop, user: {token: secret}}]
contexts: [{name: nearhop, context: {cluster: nearhop, user: nearhop}}]
";

    const USER: &str = "\
apiVersion: v1
kind: Config
current-context: work
clusters: [{name: work, cluster: {server: 'https://work', unknown-field: 7}}]
users: [{name: work, user: {exec: {command: login, args: [a, b]}}}]
contexts: [{name: work, context: {cluster: work, user: work, namespace: x}}]
extensions: [{name: e, extension: {y: z}}]
";

    #[test]
    fn other_entries_survive_merging_and_taking_out() {
        let scratch = tempfile::tempdir().expect("a directory");
        let state = scratch.path().join("lab");
        fs::create_dir(&state).expect("writable");
        fs::write(state.join("kubeconfig"), LAB).expect("writable");
        let user = scratch.path().join("config");
        fs::write(&user, USER).expect("writable");
        fs::set_permissions(&user, fs::Permissions::from_mode(0o640)).expect("ours");
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&user, &link).expect("writable");
        let before = read(&user).expect("valid");

        for _ in 0..2 {
            let merged = merge(&state, "mine", &link).expect("mergeable");
            assert_eq!(merged.context, "nearhop-mine");
        }
        let with = read(&user).expect("valid");
        assert_eq!(with["current-context"], "nearhop-mine");
        assert_eq!(with["clusters"].as_array().map(Vec::len), Some(2), "{with}");
        assert_eq!(with["clusters"][0], before["clusters"][0]);
        assert_eq!(with["contexts"][1]["context"]["user"], "nearhop-mine");
        assert_eq!(with["extensions"], before["extensions"]);
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        let mode = fs::metadata(&user).expect("there").mode() & 0o777;
        assert_eq!(mode, 0o640);

        take_out(&state);
        assert_eq!(read(&user).expect("valid"), before);
        let left: Vec<_> = fs::read_dir(scratch.path()).expect("readable").flatten().collect();
        assert_eq!(left.len(), 3, "no lock and no other file: {left:?}");
    }

    #[test]
    fn entries_of_the_user_with_the_same_name_are_refused() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("kubeconfig"), LAB).expect("writable");
        let user = scratch.path().join("config");
        for list in LISTS {
            let text = format!("# mine\n{list}: [{{name: nearhop-lab}}]\n");
            fs::write(&user, &text).expect("writable");
            let refused = merge(scratch.path(), "lab", &user).expect_err("not ours").to_string();
            assert!(refused.contains("entries named nearhop-lab"), "{refused}");
            assert_eq!(fs::read_to_string(&user).expect("there"), text);
        }
        // Those of a lab that was killed are replaced.
        fs::write(&user, USER).expect("writable");
        merge(scratch.path(), "lab", &user).expect("mergeable");
        fs::remove_file(scratch.path().join(MERGED)).expect("there");
        merge(scratch.path(), "lab", &user).expect("the entries of a lab");
    }

    #[test]
    fn a_missing_file_is_created_for_its_owner_only() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("kubeconfig"), LAB).expect("writable");
        let user = scratch.path().join("new/config");
        merge(scratch.path(), "lab", &user).expect("mergeable");
        assert_eq!(fs::metadata(&user).expect("there").mode() & 0o777, 0o600);
        take_out(scratch.path());
        assert_eq!(read(&user).expect("valid")["current-context"], "");
    }

    #[test]
    fn a_lock_of_another_program_is_awaited() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("kubeconfig"), LAB).expect("writable");
        let (user, lock) = (scratch.path().join("config"), scratch.path().join("config.lock"));
        fs::write(&lock, "").expect("writable");
        let other = std::thread::spawn({
            let (user, lock) = (user.clone(), lock.clone());
            move || {
                std::thread::sleep(Duration::from_millis(200));
                let early = user.exists();
                fs::remove_file(lock).expect("it is still there");
                early
            }
        });
        merge(scratch.path(), "lab", &user).expect("mergeable");
        assert!(!other.join().expect("no panic"), "written while it was locked");
        assert!(user.exists() && !lock.exists());
    }

    #[test]
    fn a_relative_path_of_a_missing_file_is_kept_as_an_absolute_one() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("kubeconfig"), LAB).expect("writable");
        let here = std::env::current_dir().expect("readable");
        let mut relative: PathBuf = here.components().skip(1).map(|_| "..").collect();
        relative.push(scratch.path().strip_prefix("/").expect("absolute"));
        relative.push("config");
        assert!(relative.is_relative());
        let merged = merge(scratch.path(), "lab", &relative).expect("mergeable");
        assert!(merged.path.is_absolute(), "{merged:?}");
        assert_eq!(merged_into(scratch.path())[0].path, merged.path);
    }

    #[test]
    fn a_file_without_entries_of_the_lab_is_not_written_again() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("kubeconfig"), LAB).expect("writable");
        let user = scratch.path().join("config");
        let merged = merge(scratch.path(), "lab", &user).expect("mergeable");
        assert!(is_left(&merged));
        for text in ["", "# mine\ncurrent-context: work # comment\n"] {
            fs::write(&user, text).expect("writable");
            take_out(scratch.path());
            assert_eq!(fs::read_to_string(&user).expect("there"), text);
            assert!(!is_left(&merged));
        }
        fs::write(&user, "{unbalanced: [").expect("writable");
        assert!(is_left(&merged), "a file that cannot be read may have the context");
        fs::remove_file(&user).expect("ours");
        assert!(!is_left(&merged));
    }

    #[test]
    fn a_planted_link_is_not_followed() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("kubeconfig"), LAB).expect("writable");
        let (user, planted) = (scratch.path().join("config"), scratch.path().join("planted"));
        fs::write(&planted, "another file").expect("writable");
        let link = format!("{}.nearhop-{}-0", user.display(), std::process::id());
        std::os::unix::fs::symlink(&planted, &link).expect("writable");
        merge(scratch.path(), "lab", &user).expect("mergeable");
        assert_eq!(fs::read_to_string(&planted).expect("there"), "another file");
        assert!(fs::symlink_metadata(&user).expect("there").is_file());
        assert_eq!(read(&user).expect("valid")["current-context"], "nearhop-lab");
    }

    #[test]
    fn certificates_are_one_line() {
        let scratch = tempfile::tempdir().expect("a directory");
        let certificate = "QUJD".repeat(400);
        let data = format!("server: x, certificate-authority-data: {certificate}, server2:");
        fs::write(scratch.path().join("kubeconfig"), LAB.replace("server:", &data))
            .expect("writable");
        let user = scratch.path().join("config");
        let hint = "users: [{name: work, user: {exec: {installHint: \"two\\nlines\\n\"}}}]\n";
        fs::write(&user, hint).expect("writable");
        merge(scratch.path(), "lab", &user).expect("mergeable");
        let text = fs::read_to_string(&user).expect("there");
        let line = format!("certificate-authority-data: {certificate}\n");
        assert!(text.contains(&line) && !text.contains('>'), "{text}");
        assert_eq!(
            read(&user).expect("valid")["users"][0]["user"]["exec"]["installHint"],
            "two\nlines\n"
        );
    }

    #[test]
    fn a_broken_file_is_not_changed() {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::write(scratch.path().join("kubeconfig"), LAB).expect("writable");
        let user = scratch.path().join("config");
        for text in ["- a list\n", "{unbalanced: ["] {
            fs::write(&user, text).expect("writable");
            let said = merge(scratch.path(), "lab", &user).expect_err(text).to_string();
            assert!(said.contains("config") && said.contains("Cure"), "{said}");
            assert_eq!(fs::read_to_string(&user).expect("there"), text);
        }
        let own = scratch.path().join("kubeconfig");
        let said = merge(scratch.path(), "lab", &own).expect_err("its own file").to_string();
        assert!(said.contains("the lab's own kubeconfig"), "{said}");
    }
}
