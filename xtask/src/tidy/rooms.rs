//! The rooms: ARCHITECTURE.md's table against the crates that exist, and who may import whom.
//!
//! The directions are written down here a second time, on purpose: a manifest that changes them has
//! to be argued for in two places.

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

/// What each crate may import of ours, outside its tests.
fn imports_of(package: &str) -> Option<Imports> {
    use Imports::{Anything, Only};
    Some(match package {
        // RUNTIME is process plumbing; xtask must run when nothing else compiles.
        CORE | RUNTIME | NET | "nearhop-skip" | "xtask" => Only(&[]),
        API | NETFILTER | OBJECT => Only(&[CORE]),
        // What becomes of packets can only be said of rules.
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
        "nearhop-dashboard" => Only(&[API, CORE]),
        // The binary wires everything and decides nothing; the batteries drive everything.
        "nearhop" | "nearhop-tests" => Anything,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Here,
    Planned,
}

#[derive(Debug, PartialEq, Eq)]
struct Room {
    package: String,
    state: State,
    line: usize,
}

/// Every crate has a row marked `here`, and every such row has a crate; a planned room has none
/// yet.
pub(super) fn check_map(files: &[TextFile], packages: &[Package]) -> Vec<Violation> {
    let Some(map) = files.iter().find(|file| file.path == MAP) else {
        return vec![missing_map()];
    };
    let (rooms, mut found) = parse_rooms(map);
    let exists = |room: &Room| packages.iter().any(|p| p.name == room.package);
    for room in &rooms {
        let name = &room.package;
        match (room.state, exists(room)) {
            (State::Here, true) | (State::Planned, false) => {}
            (State::Here, false) => found.push(map.violation(
                room.line,
                format!("the table says crate `{name}` is here, and it does not exist"),
                "create the crate, mark the row `planned`, or remove it",
            )),
            (State::Planned, true) => found.push(map.violation(
                room.line,
                format!("the table says crate `{name}` is planned, and it exists"),
                "mark the row `here`",
            )),
        }
    }
    for package in packages {
        if !rooms.iter().any(|room| room.package == package.name) {
            found.push(at_manifest(
                files,
                package,
                &package.name,
                format!("crate `{}` is not in {MAP}'s rooms table", package.name),
                "add its row: what lives there, what it may touch, what it must never do",
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
        cure: "write the rooms table: `| room (crate) | state | ... |`".to_owned(),
    }
}

/// The rows below the header whose first cell begins with `room` and which has a cell `state`.
fn parse_rooms(map: &TextFile) -> (Vec<Room>, Vec<Violation>) {
    let mut rows = map.lines().skip_while(|(_, line)| state_column(line).is_none());
    let Some((_, header)) = rows.next() else {
        let what = "there is no rooms table";
        let cure = "give the table a header `| room (crate) | state | ... |`";
        return (Vec::new(), vec![map.violation(1, what, cure)]);
    };
    let column = state_column(header).expect("rows begins at a line that has the column");
    let mut rooms = Vec::new();
    let mut found = Vec::new();
    for (number, line) in rows.take_while(|(_, line)| line.starts_with('|')) {
        let cells = cells(line);
        if cells[0].trim_matches(['-', ':']).is_empty() {
            continue;
        }
        match parse_room(&cells, column) {
            Some((package, state)) => rooms.push(Room { package, state, line: number }),
            None => found.push(map.violation(
                number,
                "the row does not read as a room",
                "write it as: | `room` (`crate`) | here or planned | ... |",
            )),
        }
    }
    (rooms, found)
}

fn parse_room(cells: &[&str], state_column: usize) -> Option<(String, State)> {
    // The crate is the last quoted name: `core` (`nearhop-core`), or just `xtask`.
    let package = cells[0].rsplit('`').nth(1)?;
    let state = match cells.get(state_column)?.trim_matches('`') {
        "here" => State::Here,
        "planned" => State::Planned,
        _ => return None,
    };
    Some((package.to_owned(), state))
}

fn state_column(line: &str) -> Option<usize> {
    let cells = cells(line);
    let is_header = line.starts_with('|') && cells[0].starts_with("room");
    is_header.then(|| cells.iter().position(|cell| *cell == "state"))?
}

/// Never empty: a line without bars is one cell.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// Imports go from the rim to the centre, never back and never sideways.
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
        let internal = package.lasting_dependencies().filter(|d| ours.contains(d));
        for dependency in internal.filter(|d| !allowed.contains(d)) {
            found.push(at_manifest(
                files,
                package,
                dependency,
                format!("`{}` must not import `{dependency}`", package.name),
                "pass the value in from the room that wires both, or move the code to where both may reach it",
            ));
        }
    }
    found
}

/// The floors: a crate that routes never imports one that emulates a cluster, so that a routing
/// engineer never has to read the emulator. Test dependencies are free.
pub(super) fn check_floors(files: &[TextFile], packages: &[Package]) -> Vec<Violation> {
    let floor =
        |package: &&Package, name: &str| package.manifest.starts_with(&format!("crates/{name}/"));
    let emulator: BTreeSet<&str> =
        packages.iter().filter(|p| floor(p, "emulator")).map(|p| p.name.as_str()).collect();
    let mut found = Vec::new();
    for package in packages.iter().filter(|p| floor(p, "routing")) {
        for dependency in package.lasting_dependencies().filter(|d| emulator.contains(d)) {
            found.push(at_manifest(
                files,
                package,
                dependency,
                format!(
                    "`{}` is on the routing floor and imports `{dependency}` of the emulator",
                    package.name
                ),
                "move what both need to the routing floor",
            ));
        }
    }
    found
}

/// A violation at the manifest's line that begins with `key` or names it as the package.
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

| room (crate) | state | what |
|---|---|---|
| `core` (`nearhop-core`) | here | the centre |
| `feed` (`nearhop-feed`) | planned | watches |
| `xtask` | `here` | chores |

| other | table |
|---|---|
| `nearhop-lost` | here |
";

    #[test]
    fn the_routing_floor_never_imports_the_emulator() {
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
                "crates/routing/nearhop-feed/Cargo.toml:1: `nearhop-feed` is on the routing floor and imports `nearhop-lab` of the emulator"
            ]
        );
    }

    fn check_map_of(table: &str, crates: &[&str]) -> Vec<String> {
        let packages: Vec<Package> = crates.iter().map(|name| package(name, &[])).collect();
        places(&check_map(&[file(MAP, table)], &packages))
    }

    #[test]
    fn a_table_that_agrees_is_clean() {
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
    fn a_row_without_a_crate_and_a_planned_crate_that_exists_are_found() {
        assert_eq!(
            check_map_of(TABLE, &["xtask", "nearhop-feed"]),
            [
                "ARCHITECTURE.md:5: the table says crate `nearhop-core` is here, and it does not exist",
                "ARCHITECTURE.md:6: the table says crate `nearhop-feed` is planned, and it exists",
            ]
        );
    }

    #[test]
    fn a_missing_table_and_an_unreadable_row_are_found() {
        let none = check_map_of("# Map\n", &[]);
        assert_eq!(none, ["ARCHITECTURE.md:1: there is no rooms table"]);
        let soon = TABLE.replace("planned", "soon");
        let found = check_map_of(&soon, &["nearhop-core", "xtask"]);
        assert_eq!(found, ["ARCHITECTURE.md:6: the row does not read as a room"]);
        assert_eq!(check_map(&[], &[]).len(), 1);
    }

    #[test]
    fn an_import_against_the_direction_is_found_and_a_dev_import_is_not() {
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
    fn a_crate_nobody_placed_is_found() {
        let found = check_directions(&[], &[package("nearhop-attic", &[])]);
        assert_eq!(
            places(&found),
            [
                "crates/nearhop-attic/Cargo.toml:1: the imports of crate `nearhop-attic` are not declared"
            ]
        );
    }
}
