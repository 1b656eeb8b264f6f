//! Reads the input of tidy: lists and reads files, and runs `cargo metadata`. No other part of tidy
//! has side effects.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::workspace::parse_metadata;
use super::{Repo, TextFile};
use crate::step::cargo;

/// Directories with generated files. Used only if git cannot list the files.
const GENERATED: [&str; 4] = [".git", "target", "corpus", "artifacts"];

pub(super) fn read_repo(root: &Path) -> Result<Repo> {
    let paths = list_files(root)?;
    let mut files = Vec::new();
    for path in paths {
        files.extend(read_text(root, path)?);
    }
    let packages = parse_metadata(&read_metadata(root)?)?;
    Ok(Repo { files, packages })
}

fn read_metadata(root: &Path) -> Result<Vec<u8>> {
    let args = ["metadata", "--format-version", "1", "--no-deps"];
    let output = cargo().current_dir(root).args(args).output();
    let output = output.context("cannot start cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

fn list_files(root: &Path) -> Result<Vec<String>> {
    let mut paths = match list_with_git(root) {
        Some(paths) => paths,
        // A source archive, or a machine without git.
        None => {
            let mut found = Vec::new();
            walk(root, "", &mut found)?;
            found
        }
    };
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Tracked files and new files: tidy finds a violation before it is committed.
fn list_with_git(root: &Path) -> Option<Vec<String>> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").current_dir(root).args(args).output().ok()?;
    let listed = String::from_utf8(output.stdout).ok()?;
    let paths = listed.split_terminator('\0').map(str::to_owned).collect();
    output.status.success().then_some(paths)
}

fn walk(root: &Path, under: &str, found: &mut Vec<String>) -> Result<()> {
    let directory = root.join(under);
    let entries =
        fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        // No file of the repository has a name that is not UTF-8.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = if under.is_empty() { name.clone() } else { format!("{under}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_file() {
            found.push(path);
        } else if kind.is_dir() && !GENERATED.contains(&name.as_str()) {
            walk(root, &path, found)?;
        }
    }
    Ok(())
}

/// `None` for a file that is not text, and for a file that git lists but the work tree does not have.
fn read_text(root: &Path, path: String) -> Result<Option<TextFile>> {
    let bytes = match fs::read(root.join(&path)) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("reading {path}")),
    };
    let text = String::from_utf8(bytes).ok();
    Ok(text.map(|text| TextFile { path, text }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_walk_finds_sources_and_skips_generated_files() {
        let root = std::env::temp_dir().join(format!("xtask-walk-{}", std::process::id()));
        for path in ["src/deep/a.rs", "target/debug/b.rs", ".git/config", ".ci/run"] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let mut found = Vec::new();
        walk(&root, "", &mut found).unwrap();
        fs::remove_dir_all(&root).unwrap();
        found.sort();
        assert_eq!(found, [".ci/run", "src/deep/a.rs"]);
    }

    #[test]
    fn missing_files_and_directories_are_not_text() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert!(read_text(here, "src/lost.rs".to_owned()).unwrap().is_none());
        assert!(read_text(here, "src".to_owned()).unwrap().is_none());
        assert!(
            read_text(here, "Cargo.toml".to_owned())
                .unwrap()
                .is_some_and(|file| file.text.contains("name = \"xtask\""))
        );
    }
}
