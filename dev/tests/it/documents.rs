//! The links of the documents lead to files and headings that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// All Markdown files of the repository, without those in hidden folders and in build outputs.
fn documents(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            let is_ours = !name.starts_with('.') && !name.starts_with("target");
            if is_ours && name != "corpus" {
                documents(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns the lines of a document that are not code. Code in a line becomes empty.
fn prose(text: &str) -> impl Iterator<Item = String> {
    let mut is_code = false;
    text.lines().filter_map(move |line| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return None;
        }
        (!is_code).then(|| line.split('`').step_by(2).collect::<Vec<_>>().join("``"))
    })
}

/// Returns the targets of the links in a document.
fn links(text: &str) -> Vec<String> {
    let lines: String = prose(text).map(|line| line + "\n").collect();
    let targets = lines.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// Returns the names of a document's headings in links, as GitHub makes them, and its own (`<a
/// id="…">`).
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let own = line.split("<a id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
        found.extend(own.filter(|_| !is_code).map(|(id, _)| id.to_owned()));
        let heading = line.trim_start_matches('#').strip_prefix(' ').filter(|_| !is_code);
        if let Some(heading) = heading.filter(|_| line.starts_with('#')) {
            let letters = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            found.push(letters.collect::<String>().to_lowercase().replace(' ', "-"));
        }
    }
    found
}

/// Returns the problem of a link of a document, if there is any.
fn problem(document: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = document.parent().unwrap().join(file);
    let target = if file.is_empty() { document.to_owned() } else { path };
    if !target.exists() {
        return Some("there is no such file".into());
    }
    if anchor.is_empty() {
        return None;
    }
    let other = (!file.is_empty()).then(|| fs::read_to_string(&target).unwrap());
    let known = anchors(other.as_deref().unwrap_or(text));
    (!known.iter().any(|known| known == anchor)).then(|| "there is no such heading".into())
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut count) = (Vec::new(), 0);
    documents(root, &mut found);
    for name in
        ["README.md", "docs/ARCHITECTURE.md", "CONTRIBUTING.md", "docs/RELEASING.md", "SECURITY.md"]
    {
        assert!(found.contains(&root.join(name)), "{name}");
    }
    let mut problems = Vec::new();
    for document in &found {
        let text = fs::read_to_string(document).unwrap();
        for link in links(&text) {
            count += 1;
            let wrong = problem(document, &text, &link);
            problems.extend(wrong.map(|wrong| format!("{}: {link}: {wrong}", document.display())));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 100, "only {count} links were found");
}

#[test]
fn broken_links_are_reported() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = "# A heading, and `code`\n[a](b.md) [`c`](#d)\n```\n[not](this)\n```\n`[nor](it)`\n";
    assert_eq!(links(text), ["b.md", "#d"]);
    assert_eq!(anchors(text), ["a-heading-and-code"]);
    assert_eq!(anchors("<a id=\"own\"></a>**Own.**\n```\n# no <a id=\"no\">\n```\n"), ["own"]);
    let wrong = |link| problem(&root.join("README.md"), text, link).is_some();
    assert!(wrong("none.md") && wrong("#none") && wrong("CONTRIBUTING.md#none"));
    assert!(!wrong("#a-heading-and-code") && !wrong("examples") && !wrong("https://none.invalid"));
    assert!(!wrong("CONTRIBUTING.md#names"));
}

/// A newcomer reads the README and the map of the code to their ends.
#[test]
fn the_first_pages_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, most) in [("README.md", 150), ("docs/ARCHITECTURE.md", 120)] {
        let lines = fs::read_to_string(root.join(name)).unwrap().lines().count();
        assert!(lines <= most, "{name} has {lines} lines, and should have at most {most}");
    }
}

#[test]
fn documents_state_the_number_of_dtypes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let number = format!(" {} dtypes", safetensors_bridge::Dtype::ALL.len());
    let documents = ["README.md", "safetensors-core/README.md", "docs/design.md"];
    for document in documents {
        let text = fs::read_to_string(root.join(document)).unwrap();
        assert!(text.contains(&number), "{document} should say{number}");
    }
}

/// Samples of READMEs are tests of their packages. Only those are compiled and not run that need a
/// network, keys, other programs' files, or the ranks of a job.
#[test]
fn samples_of_readmes_are_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut samples) = (Vec::new(), 0);
    documents(root, &mut found);
    for document in found.iter().filter(|path| path.ends_with("README.md")) {
        let text = fs::read_to_string(document).unwrap();
        for fence in text.lines().filter_map(|line| line.strip_prefix("```rust")) {
            samples += 1;
            let not_run = ["examples/distributed", "extras/formats", "extras/hub", "extras/sign"];
            let not_run = not_run.iter().any(|package| document.starts_with(root.join(package)));
            let allowed = fence.is_empty() || (not_run && fence == ",no_run");
            assert!(allowed, "{}: ```rust{fence}", document.display());
        }
    }
    assert!(samples > 12, "only {samples} samples were found");
}

/// Every example is in the index of the root package's documentation.
#[test]
fn the_index_names_every_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let index = fs::read_to_string(root.join("src/lib.rs")).unwrap();
    for package in ["", "examples/models", "safetensors-ndarray"] {
        for example in fs::read_dir(root.join(package).join("examples")).unwrap() {
            let name = example.unwrap().file_name().into_string().unwrap();
            if ["distributed", "models"].contains(&name.as_str()) {
                continue;
            }
            let path = Path::new(package).join("examples").join(&name);
            let path = path.to_str().unwrap().replace('\\', "/");
            assert!(index.contains(&format!("`{path}`")), "src/lib.rs does not name {path}");
        }
    }
}
