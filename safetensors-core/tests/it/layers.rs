//! The layers of the modules.
//!
//! - The table in docs/ARCHITECTURE.md lists the layer of each module of the core, and a module imports
//!   only from modules on lower layers.
//! - The table at the root of the command does the same for its modules, the highest first.
//! - In every package and every folder of it, no two modules in the same folder import from each
//!   other, directly or through others. So they have layers, too.
//!
//! The tests follow `use` and other paths to the file that defines the named item, through
//! re-exports. Unit tests may import anything. Items of the module around a file may be used in it.

use std::collections::BTreeSet;

use crate::support::*;

/// A path of modules from the root of a package.
type Names = Vec<String>;

/// One source file.
struct File {
    /// The code of the file without comments, texts and unit tests.
    code: String,
    /// Each name that a `use` brings into scope, with its path, and whether it is re-exported.
    uses: Vec<(String, Names, bool)>,
}

/// The files of a package by their module.
type Package = BTreeMap<Names, File>;

/// The imports of each module.
type Graph<T> = BTreeMap<T, BTreeSet<T>>;

/// Code without comments, the contents of texts, and unit tests.
fn code(source: &str) -> String {
    let source = source.split("\nmod tests {").next().unwrap();
    let mut code = String::new();
    let mut rest = source;
    while let Some(position) = rest.find(['/', '"', '\'']) {
        let (before, from) = rest.split_at(position);
        code.push_str(before);
        let len = if from.starts_with("//") {
            from.find('\n').unwrap_or(from.len())
        } else if from.starts_with("'\"'") || from.starts_with("'/'") {
            3
        } else if from.starts_with('"') {
            let mut escaped = false;
            let end = from.bytes().skip(1).position(|byte| {
                let is_end = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                is_end
            });
            end.map_or(from.len(), |end| end + 2)
        } else {
            code.push_str(&from[..1]);
            1
        };
        rest = &from[len..];
    }
    code + rest
}

/// The names of a tree such as `a::{b, c as d}`, with their paths.
fn tree(text: &str, before: &[String], found: &mut Vec<(String, Names)>) {
    let text = text.trim();
    if let Some((path, list)) = text.split_once('{') {
        let path: Names = path.split("::").map(|name| name.trim().to_owned()).collect();
        let path: Names = before
            .iter()
            .cloned()
            .chain(path.into_iter().filter(|name| !name.is_empty()))
            .collect();
        let (mut depth, mut start) = (0, 0);
        let list = list.strip_suffix('}').unwrap_or(list);
        for (i, byte) in list.bytes().chain([b',']).enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b',' if depth == 0 => {
                    tree(&list[start..i], &path, found);
                    start = i + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (path, name) = text.split_once(" as ").unwrap_or((text, ""));
    let own = path.split("::").map(|name| name.trim().to_owned());
    let mut path: Names = before.iter().cloned().chain(own).collect();
    path.retain(|name| !name.is_empty());
    if path.last().is_some_and(|name| name == "self") {
        path.pop();
    }
    let Some(last) = path.last() else { return };
    let name = if name.is_empty() { last } else { name };
    found.push((name.trim().to_owned(), path));
}

/// The text up to the `;` of each `use` in the code, and whether the name is re-exported.
fn uses(code: &str) -> Vec<(String, Names, bool)> {
    let mut uses = Vec::new();
    for (position, _) in code.match_indices("use ") {
        let before = code[..position].trim_end_matches(' ');
        let is_public = before.ends_with("pub") || before.ends_with(')');
        if !is_public && !before.is_empty() && !before.ends_with(['\n', '{', ']', ';']) {
            continue;
        }
        let text = code[position + 4..].split(';').next().unwrap();
        let mut found = Vec::new();
        tree(text, &[], &mut found);
        uses.extend(found.into_iter().map(|(name, path)| (name, path, is_public)));
    }
    uses
}

/// Reads the files below a folder, except for tests.
fn read(folder: &Path, module: &[String], package: &mut Package) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut inside = module.to_vec();
        if !matches!(name.as_str(), "mod" | "lib" | "main") {
            inside.push(name.clone());
        }
        if name == "tests" || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            read(&path, &inside, package);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let code = code(&fs::read_to_string(&path).unwrap());
            let uses = uses(&code);
            package.insert(inside, File { code, uses });
        }
    }
}

/// Returns a path of a module as a path from the root of the package. `None` for other packages.
fn absolute(package: &Package, module: &[String], path: &[String]) -> Option<Names> {
    let (first, rest) = path.split_first()?;
    let mut base = module.to_vec();
    match first.as_str() {
        "crate" => return Some(rest.to_vec()),
        "self" => {}
        "super" => {
            base.pop();
            let mut rest = rest;
            while let Some((name, below)) = rest.split_first()
                && name == "super"
            {
                base.pop();
                rest = below;
            }
            return Some([base, rest.to_vec()].concat());
        }
        name => {
            // A module below this one, or a name in a `use` of this file.
            let below = [&base[..], &[name.to_owned()]].concat();
            if !package.contains_key(&below) {
                let (_, path, _) = package[module].uses.iter().find(|(it, ..)| it == name)?;
                if path[0] == name {
                    return None;
                }
                let path = absolute(package, module, path)?;
                return Some([path, rest.to_vec()].concat());
            }
            base = below;
        }
    }
    Some([base, rest.to_vec()].concat())
}

/// Returns the module with the file that defines the target of a path from the root.
fn definition(package: &Package, path: &[String], depth: usize) -> Names {
    let mut module = Names::new();
    for (i, name) in path.iter().enumerate() {
        let below = [&module[..], std::slice::from_ref(name)].concat();
        if package.contains_key(&below) {
            module = below;
            continue;
        }
        let uses = package.get(&module).map(|file| &file.uses[..]).unwrap_or_default();
        let re_export = uses.iter().find(|(it, _, is_public)| it == name && *is_public);
        if let Some((_, to, _)) = re_export
            && depth < 8
            && let Some(to) = absolute(package, &module, to)
        {
            return definition(package, &[&to[..], &path[i + 1..]].concat(), depth + 1);
        }
        break;
    }
    module
}

/// Returns the paths in the code of a file that begin with `crate`, `self`, `super` or a name in
/// scope, and the paths of each `use` that is no re-export.
fn paths(package: &Package, module: &[String]) -> Vec<Names> {
    let file = &package[module];
    let mut paths: Vec<Names> = Vec::new();
    for (_, path, is_public) in &file.uses {
        if !is_public {
            paths.extend(absolute(package, module, path));
        }
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for text in file.code.split(|c: char| !is_name(c)).filter(|text| text.contains("::")) {
        let path: Names = text.split("::").map(str::to_owned).collect();
        let is_re_export = |(_, it, is_public): &(String, Names, bool)| *is_public && *it == path;
        if !path[0].is_empty() && !file.uses.iter().any(is_re_export) {
            paths.extend(absolute(package, module, &path));
        }
    }
    paths
}

/// The nodes that reach each other, if there are any.
fn circles<T: Clone + Ord>(graph: &Graph<T>) -> Vec<BTreeSet<T>> {
    let reach = |from: &T| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(node) = next.pop() {
            for to in graph.get(&node).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    next.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&T, BTreeSet<T>> = graph.keys().map(|node| (node, reach(node))).collect();
    let circle = |node: &T| -> BTreeSet<T> {
        let both = reached[node]
            .iter()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(node)));
        both.cloned().collect()
    };
    let circles: BTreeSet<_> = graph.keys().map(circle).filter(|it| !it.is_empty()).collect();
    circles.into_iter().collect()
}

/// Each import of a package: the module that imports, and the module that defines the name.
fn imports(package: &Package) -> BTreeSet<(Names, Names)> {
    let mut imports = BTreeSet::new();
    // The root of a package re-exports from all modules.
    for module in package.keys().filter(|module| !module.is_empty()) {
        for path in paths(package, module) {
            let to = definition(package, &path, 0);
            if to != *module {
                imports.insert((module.clone(), to));
            }
        }
    }
    imports
}

/// The package with this name in the workspace.
fn package(name: &str) -> Package {
    let mut package = Package::new();
    read(&workspace().join(name).join("src"), &[], &mut package);
    package
}

/// The folders of the packages that users depend on, from the workspace.
fn packages() -> Vec<String> {
    let mut packages = vec!["safetensors-ndarray/derive".to_owned()];
    for folder in ["", "extras"] {
        for entry in fs::read_dir(workspace().join(folder)).unwrap() {
            let path = Path::new(folder).join(entry.unwrap().file_name());
            let path = path.to_str().unwrap().replace('\\', "/");
            if path.starts_with("safetensors-") || !folder.is_empty() {
                packages.push(path);
            }
        }
    }
    packages
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Fails if a module at the root of a package imports from one that is not on a lower layer, or if
/// the layers have other modules than the package.
fn check(name: &str, layers: &BTreeMap<String, usize>) {
    let package = package(name);
    let listed: BTreeSet<&String> = layers.keys().collect();
    let modules: BTreeSet<&String> = package.keys().filter_map(|module| module.first()).collect();
    assert_eq!(listed, modules, "{name}: the table (left) has other modules than src (right)");
    let is_fault = |(from, to): &&(Names, Names)| {
        to.first().is_some_and(|to| *to != from[0] && layers[to] >= layers[&from[0]])
    };
    let imports = imports(&package);
    let faults: Vec<_> = imports.iter().filter(is_fault).collect();
    assert!(faults.is_empty(), "{name}: {faults:#?}");
    let calls = calls_upwards(&package, layers);
    assert!(calls.is_empty(), "{name}: a lower module calls {calls:?}");
}

/// The type of an `impl` block without a trait, from its first line.
fn extended(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("impl").filter(|_| !line.contains(" for "))?;
    let mut depth = 0;
    if rest.starts_with('<') {
        let end = rest.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        });
        rest = &rest[end? + 1..];
    }
    let rest = rest.trim_start();
    Some(&rest[..rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len())])
}

/// The names that follow a word such as `fn` in code.
fn named<'a>(code: &'a str, word: &str) -> impl Iterator<Item = &'a str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).filter_map(move |(at, _)| {
        let (before, name) = (code[..at].chars().next_back(), &code[at + word.len()..]);
        let name = &name[..name.find(|c| !is_name(c)).unwrap_or(name.len())];
        (!before.is_some_and(is_name) && !name.is_empty()).then_some(name)
    })
}

/// Each call, in a lower part, of a method that only a higher part has, which gives it to a type of
/// a lower part.
fn calls_upwards(package: &Package, layers: &BTreeMap<String, usize>) -> Vec<String> {
    let files = || package.iter().filter_map(|(it, file)| Some((layers[it.first()?], &file.code)));
    let mut types: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let mut functions: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (layer, code) in files() {
        for name in named(code, "struct ").chain(named(code, "enum ")) {
            types.entry(name).or_default().insert(layer);
        }
        for name in named(code, "fn ") {
            functions.entry(name).or_default().insert(layer);
        }
    }
    let mut calls = Vec::new();
    for (layer, code) in files() {
        let mut is_extended = false;
        for line in code.lines() {
            if let Some(name) = extended(line) {
                let defined = types.get(name);
                is_extended = defined.is_some_and(|it| it.iter().all(|defined| *defined < layer));
            }
            is_extended &= line != "}";
            let added = named(line, "fn ")
                .filter(|name| is_extended && functions[name].first() == Some(&layer));
            for name in added {
                let is_called = |code: &str| {
                    [".", "::"].iter().any(|before| code.contains(&format!("{before}{name}(")))
                };
                if files().any(|(lower, code)| lower < layer && is_called(code)) {
                    calls.push(name.to_owned());
                }
            }
        }
    }
    calls
}

/// The rows of a table such as ``| 3 | `tensor` | … |``: each number with its modules.
fn rows(table: &str) -> BTreeMap<String, usize> {
    let mut layers = BTreeMap::new();
    for row in table.lines() {
        let mut cells = row.trim_matches('|').split('|');
        let (Some(layer), Some(modules)) = (cells.next(), cells.next()) else { continue };
        let Ok(layer) = layer.trim().parse() else { continue };
        for module in modules.split('`').skip(1).step_by(2) {
            assert_eq!(layers.insert(module.into(), layer), None, "duplicate {module}");
        }
    }
    layers
}

#[test]
fn a_call_of_a_method_of_a_higher_part_is_reported() {
    let file = |code: &str| File { code: code.to_owned(), uses: Vec::new() };
    let lower = "struct A;\nimpl A {\n    fn own(&self) {\n        self.above();\n    }\n}\n";
    let upper = "impl<T: Fn<()>> A<T> {\n    fn above(&self) {}\n    fn own(&self) {}\n}\n";
    let package = [(vec!["low".into()], file(lower)), (vec!["high".into()], file(upper))];
    let layers = [("low".to_owned(), 0), ("high".to_owned(), 1)];
    assert_eq!(calls_upwards(&package.into(), &layers.into()), ["above"]);
}

#[test]
fn modules_of_the_core_import_only_from_lower_layers() {
    let table = fs::read_to_string(workspace().join("docs/ARCHITECTURE.md")).unwrap();
    check("safetensors-core", &rows(&table));
}

#[test]
fn modules_of_the_command_import_only_from_lower_layers() {
    let root = workspace().join("safetensors-cli/src/main.rs");
    let root = fs::read_to_string(root).unwrap();
    let rows = root.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'));
    let names: Vec<_> = rows.map(|(name, _)| name.to_owned()).collect();
    check("safetensors-cli", &names.into_iter().rev().zip(0..).collect());
}

#[test]
fn no_files_and_no_modules_import_in_circles() {
    let (mut faults, mut count) = (Vec::new(), 0);
    for name in packages() {
        // For each module, the imports of the modules in it from each other.
        let mut levels: BTreeMap<Names, Graph<String>> = BTreeMap::new();
        for (from, to) in imports(&package(&name)) {
            count += 1;
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                let level = levels.entry(from[..common].to_vec()).or_default();
                level.entry(a.clone()).or_default().insert(b.clone());
            }
        }
        for (module, graph) in levels {
            for circle in circles(&graph) {
                faults.push(format!("{name}: in {:?}: {circle:?}", module.join("::")));
            }
        }
    }
    assert!(count > 1000, "only {count} imports are found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
