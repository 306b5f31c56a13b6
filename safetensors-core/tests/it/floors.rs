//! The floors of this crate: a room, which is a top-level module, imports only from rooms on lower
//! floors.
//!
//! The table in ARCHITECTURE.md lists the floor of each room. This test reads every `crate::…` path
//! in the sources. It fails if a path leads to the same floor or a higher one, if a path does not
//! name a room, or if the table and the folder have different rooms.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of the table with their floors: rows such as ``| 3 | `tensor` | … |``.
fn floors(table: &str) -> BTreeMap<String, u32> {
    let mut floors = BTreeMap::new();
    for row in table.lines() {
        let mut cells = row.trim_matches('|').split('|');
        let (Some(floor), Some(rooms)) = (cells.next(), cells.next()) else { continue };
        let Ok(floor) = floor.trim().parse() else { continue };
        for room in rooms.split('`').skip(1).step_by(2) {
            assert_eq!(floors.insert(room.into(), floor), None, "duplicate {room} in the table");
        }
    }
    floors
}

/// The Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The code of a file without comments and without unit tests, which may import anything.
fn code(source: &str) -> String {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
    code.lines().map(|line| line.split("//").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// The name after each `crate::` in a file.
fn imports(source: &str) -> BTreeSet<String> {
    let name =
        |path: &str| path.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(Into::into);
    code(source).split("crate::").skip(1).filter_map(name).collect()
}

#[test]
fn rooms_import_only_from_lower_floors() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(package.join("../ARCHITECTURE.md")).unwrap();
    let floors = floors(&table);
    let root = package.join("src");
    let mut rooms = BTreeSet::new();
    let mut faults = Vec::new();
    for file in sources(&root) {
        let inside = file.strip_prefix(&root).unwrap();
        let room = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let room = room.trim_end_matches(".rs");
        // The crate's root re-exports from all rooms, and files of unit tests may import anything.
        if room == "lib" || inside.ends_with("tests.rs") || inside.ends_with("differential.rs") {
            continue;
        }
        rooms.insert(room.to_owned());
        for import in imports(&fs::read_to_string(&file).unwrap()) {
            match (floors.get(room), floors.get(&import)) {
                _ if import == room => {}
                (_, None) => faults.push(format!("{inside:?} imports {import}, which is no room")),
                (Some(floor), Some(below)) if below >= floor => {
                    faults.push(format!(
                        "{inside:?} on floor {floor} imports {import} of floor {below}"
                    ));
                }
                _ => {}
            }
        }
    }
    let listed: BTreeSet<_> = floors.into_keys().collect();
    assert_eq!(
        listed, rooms,
        "the table of ARCHITECTURE.md (left) has other rooms than src (right)"
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
