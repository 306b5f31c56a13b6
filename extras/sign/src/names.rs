//! Names of files in a signature: relative to the model, with `/`.

use std::path::{Component, Path};

/// Every signature omits these, at the top of the model.
pub(crate) const GIT: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];

/// The name of a model that is one file, as in the reference.
pub(crate) const SINGLE_FILE: &str = ".";

/// No part is empty, `.`, `..`, or special on this system.
pub(crate) fn is_plain(name: &str) -> bool {
    let parts = || name.split('/');
    let is_normal = |(part, component): (&str, _)| component == Component::Normal(part.as_ref());
    !name.contains('\0')
        && parts().count() == Path::new(name).components().count()
        && parts().zip(Path::new(name).components()).all(is_normal)
}

/// Nothing is below a path that is not plain.
pub(crate) fn is_below(name: &str, path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        && is_plain(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_lead_elsewhere_are_not_plain() {
        for name in ["a", "a/b.c", ".hidden", "..a", "\u{e9}/x y"] {
            assert!(is_plain(name), "{name}");
        }
        // On Windows they lead to drives, and out of the model.
        for name in ["a:0:1", "c:", r"..\a", r"a\b", r"\a"] {
            assert_eq!(is_plain(name), !cfg!(windows), "{name}");
        }
        for name in ["", ".", "..", "/", "/a", "a/", "a//b", "./a", "a/.", "a/../b", "../a", "a\0"]
        {
            assert!(!is_plain(name), "{name:?}");
        }
    }

    #[test]
    fn names_are_compared_by_entire_components() {
        for (name, path) in [("a", "a"), ("a/b", "a"), ("a/b", "a/"), ("a/b/c", "a/b")] {
            assert!(is_below(name, path), "{name} {path}");
        }
        for (name, path) in
            [("ab", "a"), ("a", "a/b"), ("a", ""), ("a", "."), ("b/a", "a"), ("a", "/")]
        {
            assert!(!is_below(name, path), "{name} {path}");
        }
    }
}
