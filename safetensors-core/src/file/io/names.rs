//! Names that files cannot have: on Windows, or for their length.

use std::ffi::OsStr;
use std::path::{Component, MAIN_SEPARATOR_STR, Path};
use std::{fs, io};

use crate::format::error::Quoted;

/// Fails if the system cannot have the file.
// On Windows some names lead to devices, to other files or to hidden streams, where a save would
// lose its tensors. A path that begins with `\\?\` may have some, but few programs open such a file
// again.
pub(crate) fn refuse_impossible(path: &Path) -> io::Result<()> {
    let problem = path.components().find_map(|component| match component {
        Component::Normal(name) if cfg!(windows) => refused_by_windows(name.to_str()?),
        _ => None,
    });
    match problem.or_else(|| missing_drive(path)).or_else(|| too_long(path)) {
        Some(problem) => Err(io::Error::new(io::ErrorKind::InvalidFilename, problem)),
        None => Ok(()),
    }
}

// A file system reports a missing directory first, so it is asked about each name in the directory
// that is there.
fn too_long(path: &Path) -> Option<String> {
    const SHORT: usize = 100;
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) if name.len() > SHORT => Some(name),
        _ => None,
    });
    let mut names = names.peekable();
    names.peek()?;
    let there = path.ancestors().skip(1).find(|it| it.is_dir()).unwrap_or(Path::new("."));
    let is_refused = |name: &&OsStr| {
        let found = fs::symlink_metadata(there.join(name));
        found.is_err_and(|error| error.kind() == io::ErrorKind::InvalidFilename)
    };
    let len = names.find(is_refused)?.len();
    Some(format!("a name of {len} bytes is longer than the file system takes"))
}

// `x:y` is relative to a drive's current directory, but may be meant for a name with `:`.
fn missing_drive(path: &Path) -> Option<String> {
    let mut components = path.components();
    let Some(Component::Prefix(drive)) = components.next() else { return None };
    if components.next() == Some(Component::RootDir) {
        return None;
    }
    let drive = drive.as_os_str();
    let root = fs::metadata(Path::new(drive).join(MAIN_SEPARATOR_STR));
    let is_missing = root.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let drive = drive.to_string_lossy();
    is_missing
        .then(|| format!("there is no drive {}, and in names Windows reserves ':'", Quoted(&drive)))
}

// https://learn.microsoft.com/en-us/windows/win32/fileio/naming-a-file
fn refused_by_windows(name: &str) -> Option<String> {
    let quoted = Quoted(name);
    if let Some(reserved) = name.chars().find(|&c| c < ' ' || r#"<>:"/\|?*"#.contains(c)) {
        return Some(format!("the name {quoted} contains {reserved:?}, which Windows reserves"));
    }
    if name.ends_with(['.', ' ']) {
        return Some(format!(
            "the name {quoted} ends with a dot or a space, which Windows ignores"
        ));
    }
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_device = matches!(&*stem, "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$");
    if is_device || is_port(&stem) {
        return Some(format!("the name {quoted} is a Windows device"));
    }
    None
}

fn is_port(stem: &str) -> bool {
    let number = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    let mut number = number.unwrap_or_default().chars();
    matches!((number.next(), number.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_windows_can_have() {
        for (name, expected) in [
            ("con.safetensors", "is a Windows device"),
            ("Com1", "is a Windows device"),
            ("LPT².x.y", "is a Windows device"),
            ("nul .txt", "is a Windows device"),
            ("conin$", "is a Windows device"),
            ("CONOUT$.safetensors", "is a Windows device"),
            ("model.safetensors:stream", "contains ':'"),
            ("a\tb", r"contains '\t'"),
            ("epoch?", "contains '?'"),
            ("model.", "ends with a dot or a space"),
            ("model ", "ends with a dot or a space"),
        ] {
            let problem = refused_by_windows(name).unwrap();
            assert!(problem.contains(expected), "{name}: {problem}");
        }
        let long = refused_by_windows(&"?".repeat(100_000)).unwrap();
        assert!(long.len() < 300, "{} bytes", long.len());
        for name in
            ["model.safetensors", "console", "com10", "COM", "conin", "a con", ".hidden", "é 1"]
        {
            assert_eq!(refused_by_windows(name), None, "{name}");
        }
    }

    #[test]
    fn a_path_is_refused_for_its_names() {
        let mut drives = ('D'..='Z').map(|letter| format!(r"{letter}:\"));
        let missing = drives.find(|drive| !Path::new(drive).exists()).unwrap();
        for path in [
            &*missing.replace('\\', "b.safetensors"),
            r"directory/aux.safetensors",
            r"C:\models\a:b",
            r"\\server\share\con",
            r"\\?\UNC\server\share\nul.safetensors",
            r"\\?\C:\models\a.",
        ] {
            let is_refused = refuse_impossible(Path::new(path)).is_err();
            assert_eq!(is_refused, cfg!(windows), "{path}");
        }
        let long = format!(r"C:\{}\a", ["d"; 300].join(r"\"));
        for path in [
            r"C:\models\..\a.safetensors",
            r"C:a",
            r"\\server\share\a",
            r"\\?\UNC\server\share\a",
            r"\\?\C:\a",
        ] {
            refuse_impossible(Path::new(path)).unwrap();
        }
        // Elsewhere it is one name, and too long.
        assert_eq!(refuse_impossible(Path::new(&long)).is_ok(), cfg!(windows));
    }
}
