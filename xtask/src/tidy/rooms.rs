//! Checks the rooms, one for each crate: the table in ARCHITECTURE.md matches the existing crates,
//! and each crate imports only what it may import.
//!
//! The allowed imports are listed here in addition to the manifests, so that a new import between
//! crates needs a deliberate change in two places.

use std::collections::BTreeSet;

use super::workspace::Package;
use super::{TextFile, Violation};

const MAP: &str = "ARCHITECTURE.md";

enum Imports {
    Only(&'static [&'static str]),
    Anything,
}

const CORE: &str = "nearhop-core";
const API: &str = "nearhop-api";
const CONFORM: &str = "nearhop-conform";
const OBJECT: &str = "nearhop-object";
const KINDS: &str = "nearhop-kinds";
const NETFILTER: &str = "nearhop-netfilter";
const SIMULATOR: &str = "nearhop-simulator";
const RUNTIME: &str = "nearhop-runtime";
const FEED: &str = "nearhop-feed";
const NET: &str = "nearhop-net";

/// The workspace crates that each crate may import, except in tests.
fn imports_of(package: &str) -> Option<Imports> {
    use Imports::{Anything, Only};
    Some(match package {
        // RUNTIME has no cluster logic; xtask must run when other crates do not compile.
        CORE | RUNTIME | NET | "nearhop-skip" | "xtask" => Only(&[]),
        API | NETFILTER | OBJECT => Only(&[CORE]),
        // The simulator sends packets through the rules of NETFILTER.
        SIMULATOR => Only(&[NETFILTER, CORE]),
        CONFORM => Only(&[SIMULATOR, NETFILTER, CORE]),
        FEED => Only(&[API, CORE, RUNTIME]),
        KINDS => Only(&[OBJECT, CORE]),
        "nearhop-apiserver" => Only(&[KINDS, OBJECT, RUNTIME]),
        "nearhop-controller" | "nearhop-dns" => Only(&[FEED, API, CORE, RUNTIME]),
        "nearhop-proxy" => Only(&[FEED, NETFILTER, API, CORE, RUNTIME]),
        "nearhop-agent" => Only(&[NET, FEED, CORE, RUNTIME]),
        "nearhop-manager" => Only(&[FEED, CORE, RUNTIME]),
        "nearhop-lab" => Only(&[NET, API, CORE, RUNTIME]),
        // The binary connects all crates; the tests use all crates.
        "nearhop" | "nearhop-tests" => Anything,
        _ => return None,
    })
}

#[derive(Debug, PartialEq, Eq)]
struct Room {
    package: String,
    line: usize,
}

/// Checks that every crate has a row, and every row a crate.
pub(super) fn check_map(files: &[TextFile], packages: &[Package]) -> Vec<Violation> {
    let Some(map) = files.iter().find(|file| file.path == MAP) else {
        return vec![missing_map()];
    };
    let (rooms, mut found) = parse_rooms(map);
    let exists = |room: &Room| packages.iter().any(|p| p.name == room.package);
    for room in &rooms {
        if !exists(room) {
            found.push(map.violation(
                room.line,
                format!("crate `{}` of the table does not exist", room.package),
                "create the crate, or remove the row",
            ));
        }
    }
    for package in packages {
        if !rooms.iter().any(|room| room.package == package.name) {
            found.push(at_manifest(
                files,
                package,
                &package.name,
                format!("crate `{}` is not in {MAP}'s rooms table", package.name),
                "add its row, with all columns of the table",
            ));
        }
    }
    found
}

fn missing_map() -> Violation {
    Violation {
        path: MAP.to_owned(),
        line: 1,
        what: "the file is missing".to_owned(),
        cure: "write the rooms table: `| room (crate) | ... |`".to_owned(),
    }
}

/// The rows below the header whose first cell begins with `room`.
fn parse_rooms(map: &TextFile) -> (Vec<Room>, Vec<Violation>) {
    let mut rows = map.lines().skip_while(|(_, line)| !is_header(line));
    if rows.next().is_none() {
        let what = "the file has no rooms table";
        let cure = "give the table a header `| room (crate) | ... |`";
        return (Vec::new(), vec![map.violation(1, what, cure)]);
    }
    let mut rooms = Vec::new();
    let mut found = Vec::new();
    for (number, line) in rows.take_while(|(_, line)| line.starts_with('|')) {
        let cells = cells(line);
        if cells[0].trim_matches(['-', ':']).is_empty() {
            continue;
        }
        // The crate is the last quoted name: `core` (`nearhop-core`), or just `xtask`.
        match cells[0].rsplit('`').nth(1) {
            Some(package) => rooms.push(Room { package: package.to_owned(), line: number }),
            None => found.push(map.violation(
                number,
                "the row is not a valid room",
                "write it as: | `room` (`crate`) | ... |",
            )),
        }
    }
    (rooms, found)
}

fn is_header(line: &str) -> bool {
    line.starts_with('|') && cells(line)[0].starts_with("room")
}

/// The cells of a row, at least one: a line without bars is one cell.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// Checks that each crate imports only the crates in `imports_of`.
pub(super) fn check_directions(files: &[TextFile], packages: &[Package]) -> Vec<Violation> {
    let ours: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    let mut found = Vec::new();
    for package in packages {
        let Some(imports) = imports_of(&package.name) else {
            found.push(at_manifest(
                files,
                package,
                &package.name,
                format!("the imports of crate `{}` are not declared", package.name),
                "add it to `imports_of` in xtask/src/tidy/rooms.rs",
            ));
            continue;
        };
        let Imports::Only(allowed) = imports else {
            continue;
        };
        let internal = package.non_dev_dependencies().filter(|d| ours.contains(d));
        for dependency in internal.filter(|d| !allowed.contains(d)) {
            found.push(at_manifest(
                files,
                package,
                dependency,
                format!("`{}` must not import `{dependency}`", package.name),
                "pass the value in from a crate that imports both, or move the code to a crate that both may import",
            ));
        }
    }
    found
}

/// Checks that no crate in `crates/routing` imports one in `crates/emulator`, so that an engineer can
/// read the routing code without the emulator. Test dependencies are allowed.
pub(super) fn check_floors(files: &[TextFile], packages: &[Package]) -> Vec<Violation> {
    let floor =
        |package: &&Package, name: &str| package.manifest.starts_with(&format!("crates/{name}/"));
    let emulator: BTreeSet<&str> =
        packages.iter().filter(|p| floor(p, "emulator")).map(|p| p.name.as_str()).collect();
    let mut found = Vec::new();
    for package in packages.iter().filter(|p| floor(p, "routing")) {
        for dependency in package.non_dev_dependencies().filter(|d| emulator.contains(d)) {
            found.push(at_manifest(
                files,
                package,
                dependency,
                format!(
                    "`{}` is in crates/routing and imports `{dependency}` of crates/emulator",
                    package.name
                ),
                "move the shared code to a crate in crates/routing",
            ));
        }
    }
    found
}

/// A violation at the line of the manifest that begins with `key` or contains it in quotes.
pub(super) fn at_manifest(
    files: &[TextFile],
    package: &Package,
    key: &str,
    what: String,
    cure: &str,
) -> Violation {
    let manifest = files.iter().find(|file| file.path == package.manifest);
    let names = |line: &str| {
        let after = line.trim_start().strip_prefix(key);
        after.is_some_and(|rest| rest.starts_with([' ', '.', '=']))
            || line.contains(&format!("\"{key}\""))
    };
    let line = manifest.and_then(|file| file.lines().find(|(_, line)| names(line)));
    Violation {
        path: package.manifest.clone(),
        line: line.map_or(1, |(number, _)| number),
        what,
        cure: cure.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{file, package, places};
    use super::super::workspace::Kind;
    use super::*;

    const TABLE: &str = "\
# Map

| room (crate) | what |
|---|---|
| `core` (`nearhop-core`) | the centre |
| `xtask` | chores |

| other | table |
|---|---|
| `nearhop-lost` | here |
";

    #[test]
    fn routing_crates_cannot_import_emulator_crates() {
        let on = |floor: &str, name: &str, dependencies: &[(&str, Kind)]| {
            let manifest = format!("crates/{floor}/{name}/Cargo.toml");
            Package { manifest, ..package(name, dependencies) }
        };
        let mut packages = vec![
            on("routing", "nearhop-core", &[]),
            on("emulator", "nearhop-lab", &[("nearhop-core", Kind::Normal)]),
            on(
                "routing",
                "nearhop-dns",
                &[("nearhop-core", Kind::Normal), ("nearhop-lab", Kind::Dev)],
            ),
        ];
        assert!(check_floors(&[], &packages).is_empty());
        packages.push(on("routing", "nearhop-feed", &[("nearhop-lab", Kind::Normal)]));
        assert_eq!(
            places(&check_floors(&[], &packages)),
            [
                "crates/routing/nearhop-feed/Cargo.toml:1: `nearhop-feed` is in crates/routing and imports `nearhop-lab` of crates/emulator"
            ]
        );
    }

    fn check_map_of(table: &str, crates: &[&str]) -> Vec<String> {
        let packages: Vec<Package> = crates.iter().map(|name| package(name, &[])).collect();
        places(&check_map(&[file(MAP, table)], &packages))
    }

    #[test]
    fn a_correct_table_has_no_violations() {
        assert!(check_map_of(TABLE, &["nearhop-core", "xtask"]).is_empty());
    }

    #[test]
    fn a_crate_without_a_row_is_found_at_its_manifest() {
        let packages =
            [package("nearhop-core", &[]), package("xtask", &[]), package("nearhop-dns", &[])];
        let manifest = "[package]\nname = \"nearhop-dns\"\n";
        let files = [file(MAP, TABLE), file("crates/nearhop-dns/Cargo.toml", manifest)];
        assert_eq!(
            places(&check_map(&files, &packages)),
            [
                "crates/nearhop-dns/Cargo.toml:2: crate `nearhop-dns` is not in ARCHITECTURE.md's rooms table"
            ]
        );
    }

    #[test]
    fn a_row_without_a_crate_is_found() {
        assert_eq!(
            check_map_of(TABLE, &["xtask"]),
            ["ARCHITECTURE.md:5: crate `nearhop-core` of the table does not exist"]
        );
    }

    #[test]
    fn a_missing_table_and_an_invalid_row_are_found() {
        let none = check_map_of("# Map\n", &[]);
        assert_eq!(none, ["ARCHITECTURE.md:1: the file has no rooms table"]);
        let unquoted = TABLE.replace("`xtask`", "xtask");
        let found = check_map_of(&unquoted, &["nearhop-core"]);
        assert_eq!(found, ["ARCHITECTURE.md:6: the row is not a valid room"]);
        assert_eq!(check_map(&[], &[]).len(), 1);
    }

    #[test]
    fn a_forbidden_import_is_found_and_a_dev_import_is_allowed() {
        let packages = [
            package(CORE, &[("nearhop-api", Kind::Normal), (CORE, Kind::Dev)]),
            package(API, &[(CORE, Kind::Normal), (CONFORM, Kind::Dev)]),
            package(CONFORM, &[(API, Kind::Build)]),
            package("nearhop", &[(CORE, Kind::Normal), (CONFORM, Kind::Normal)]),
        ];
        let manifest = "[dependencies]\nserde = \"1\"\nnearhop-api.workspace = true\n";
        let files = [file("crates/nearhop-core/Cargo.toml", manifest)];
        assert_eq!(
            places(&check_directions(&files, &packages)),
            [
                "crates/nearhop-core/Cargo.toml:3: `nearhop-core` must not import `nearhop-api`",
                "crates/nearhop-conform/Cargo.toml:1: `nearhop-conform` must not import `nearhop-api`",
            ]
        );
    }

    #[test]
    fn a_crate_without_declared_imports_is_found() {
        let found = check_directions(&[], &[package("nearhop-attic", &[])]);
        assert_eq!(
            places(&found),
            [
                "crates/nearhop-attic/Cargo.toml:1: the imports of crate `nearhop-attic` are not declared"
            ]
        );
    }
}
