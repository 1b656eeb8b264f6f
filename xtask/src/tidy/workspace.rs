//! The crates of the workspace from `cargo metadata`, with the fields that the checks use.
//!
//! It reads declared dependencies, not resolved ones, so it needs no lock file and no network.

use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    /// Relative to the workspace's root.
    pub(super) manifest: String,
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dependency {
    /// The name of the package, even if the manifest renames it.
    pub(super) name: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Build,
    Dev,
}

impl Package {
    /// Normal and build dependencies. Dev dependencies are not restricted.
    pub(super) fn non_dev_dependencies(&self) -> impl Iterator<Item = &str> {
        let non_dev = self.dependencies.iter().filter(|d| d.kind != Kind::Dev);
        non_dev.map(|dependency| dependency.name.as_str())
    }
}

pub(super) fn parse_metadata(json: &[u8]) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_slice(json).context("cargo metadata is not JSON")?;
    let root = text(&metadata, "workspace_root")?;
    let packages = list(&metadata, "packages")?.iter();
    packages.map(|package| parse_package(package, root)).collect()
}

fn parse_package(package: &Value, root: &str) -> Result<Package> {
    let manifest = text(package, "manifest_path")?;
    let relative = manifest.strip_prefix(root).unwrap_or(manifest);
    let dependencies = list(package, "dependencies")?.iter();
    Ok(Package {
        name: text(package, "name")?.to_owned(),
        manifest: relative.trim_start_matches('/').to_owned(),
        dependencies: dependencies.map(parse_dependency).collect::<Result<_>>()?,
    })
}

fn parse_dependency(dependency: &Value) -> Result<Dependency> {
    let kind = match dependency.get("kind").and_then(Value::as_str) {
        None => Kind::Normal,
        Some("build") => Kind::Build,
        Some("dev") => Kind::Dev,
        Some(other) => {
            bail!("cargo metadata has the unknown dependency kind `{other}`")
        }
    };
    Ok(Dependency { name: text(dependency, "name")?.to_owned(), kind })
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    let found = value.get(key).and_then(Value::as_str);
    found.with_context(|| format!("cargo metadata has no text `{key}`"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    let found = value.get(key).and_then(Value::as_array);
    found.with_context(|| format!("cargo metadata has no list `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_manifests_and_kinds_are_parsed() {
        let json = br#"{"workspace_root": "/repo", "packages": [
            {"name": "nearhop-api", "manifest_path": "/repo/crates/routing/api/Cargo.toml", "dependencies": [
                {"name": "nearhop-core", "kind": null, "rename": "centre"},
                {"name": "cc", "kind": "build"},
                {"name": "proptest", "kind": "dev"}]}]}"#;
        let packages = parse_metadata(json).unwrap();
        assert_eq!(packages.len(), 1);
        assert_eq!(packages[0].manifest, "crates/routing/api/Cargo.toml");
        let non_dev: Vec<&str> = packages[0].non_dev_dependencies().collect();
        assert_eq!(non_dev, ["nearhop-core", "cc"]);
    }

    #[test]
    fn invalid_metadata_is_an_error() {
        for json in ["", "{}", r#"{"workspace_root": "/", "packages": [{"name": "x"}]}"#] {
            assert!(parse_metadata(json.as_bytes()).is_err(), "{json}");
        }
    }
}
