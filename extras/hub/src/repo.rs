//! [`RepoId`] and [`Revision`]: a repository, and its state.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// Bytes of an owner, and of a name.
const LONGEST_NAME: usize = 96;

const KINDS: [&str; 5] = [MODELS, "datasets", "spaces", "kernels", BUCKETS];
const MODELS: &str = "models";
const BUCKETS: &str = "buckets";

/// The name of a repository of models, `owner/name`, or of another kind: `datasets/owner/name`,
/// `spaces/...`, `kernels/...`, `buckets/...`. A few old ones have no owner: `gpt2`. A bucket has
/// no commits, and is not downloaded into the cache.
///
/// It only has letters, digits, `-`, `_`, `.` and `/`: safe in a path and in a URL.
///
/// ```
/// use safetensors_hub::RepoId;
///
/// let repo: RepoId = "openai-community/gpt2".parse()?;
/// assert_eq!(repo.to_string(), "openai-community/gpt2");
/// let same: RepoId = "models/openai-community/gpt2".parse()?;
/// assert_eq!(repo, same);
/// assert!("datasets/owner/name".parse::<RepoId>().is_ok());
/// assert!("../gpt2".parse::<RepoId>().is_err());
/// # Ok::<(), safetensors_hub::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId(String);

impl RepoId {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let is_name = |name: &str| {
            let is_inner = |c: char| matches!(c, '-' | '.');
            (1..=LONGEST_NAME).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && !name.starts_with(is_inner)
                && !name.ends_with(is_inner)
                && !name.contains("--")
                && !name.contains("..")
                && !name.ends_with(".git")
        };
        let (kind, rest) = kind_and_rest(text);
        let is_repo = match rest.split_once('/') {
            Some((owner, name)) => is_name(owner) && is_name(name),
            None => is_name(rest) && !KINDS.contains(&rest) && kind != BUCKETS,
        };
        if is_repo {
            Ok(Self(if kind == MODELS { rest.into() } else { text.into() }))
        } else {
            Err(ErrorKind::BadRepoId { found: text.into() }.into())
        }
    }

    pub(crate) fn is_kind(part: &str) -> bool {
        KINDS.contains(&part)
    }

    pub(crate) fn with_kind(&self) -> String {
        let (kind, rest) = kind_and_rest(&self.0);
        format!("{kind}/{rest}")
    }

    pub(crate) fn is_bucket(&self) -> bool {
        kind_and_rest(&self.0).0 == BUCKETS
    }

    /// Such as `models--owner--name`.
    pub(crate) fn folder(&self) -> String {
        self.with_kind().replace('/', "--")
    }

    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        let (kind, rest) = folder.split_once("--")?;
        let repo = Self::parse(&format!("{kind}/{}", rest.replacen("--", "/", 1))).ok()?;
        Some(repo).filter(|repo| repo.folder() == folder && !repo.is_bucket())
    }
}

/// Models by default.
fn kind_and_rest(text: &str) -> (&str, &str) {
    text.split_once('/').filter(|(kind, _)| KINDS.contains(kind)).unwrap_or((MODELS, text))
}

/// A branch, a tag, a pull request such as `refs/pr/1`, or a commit.
///
/// ```
/// use safetensors_hub::Revision;
///
/// let revision: Revision = "refs/pr/1".parse()?;
/// assert_eq!(revision.to_string(), "refs/pr/1");
/// assert_eq!(Revision::default(), "main".parse()?);
/// # Ok::<(), safetensors_hub::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(String);

impl Revision {
    /// Applies git's rules for references.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let is_part = |part: &str| {
            !part.is_empty() && !part.starts_with('.') && !part.ends_with('.') && part != "@"
        };
        let is_char = |c: char| !c.is_whitespace() && !c.is_control() && !r"\:?*[]~^{}".contains(c);
        let is_ref = text.len() <= 255
            && text.split('/').all(is_part)
            && text.chars().all(is_char)
            && !text.contains("..");
        if is_ref {
            Ok(Self(text.into()))
        } else {
            Err(ErrorKind::BadRevision { found: text.into() }.into())
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn main() -> Self {
        Self("main".into())
    }

    /// A complete commit: 40 lower-case hex digits. Its content never changes.
    pub(crate) fn is_commit(&self) -> bool {
        is_hex(&self.0, 40)
    }
}

#[cfg(feature = "download")]
impl Revision {
    pub(crate) fn check_commit(&self, found: &Self) -> Result<()> {
        if !self.is_commit() || self == found {
            return Ok(());
        }
        let [before, now] = [self, found].map(ToString::to_string);
        Err(ErrorKind::Changed { what: "commit", before, now }.into())
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self::main()
    }
}

macro_rules! text {
    ($($name:ident),+) => {$(
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::parse(text)
            }
        }
    )+};
}

text!(RepoId, Revision);

/// Lower-case only.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Requires a relative path of plain parts, on every system.
pub(crate) fn check_file_name(name: &str) -> Result<()> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255;
    let is_char = |c: char| !c.is_control() && !matches!(c, '\\' | ':');
    if name.split('/').all(is_part) && name.chars().all(is_char) {
        Ok(())
    } else {
        Err(ErrorKind::UnsafeName { found: name.into() }.into())
    }
}

pub(crate) fn percent_encoded(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into());
            }
            b'/' if keep_slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `None` if two hex digits are missing.
pub(crate) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        // It takes a sign, too.
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_repositories() {
        for (good, folder) in [
            ("gpt2", "models--gpt2"),
            ("Qwen/Qwen2.5-0.5B_x", "models--Qwen--Qwen2.5-0.5B_x"),
            ("0/1", "models--0--1"),
            ("datasets/a/b", "datasets--a--b"),
            ("datasets/squad", "datasets--squad"),
            ("spaces/a/b", "spaces--a--b"),
            ("kernels/a/b", "kernels--a--b"),
        ] {
            let repo = RepoId::parse(good).unwrap();
            assert_eq!(repo.folder(), folder);
            assert_eq!(RepoId::of_folder(folder), Some(repo));
        }
        assert_eq!(RepoId::parse("models/a/b").unwrap(), RepoId::parse("a/b").unwrap());
        assert!(RepoId::parse("buckets/a/b").unwrap().is_bucket());
        let long = "x".repeat(97);
        for bad in [
            "",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "..",
            "a/..",
            "a--b/c",
            "-a",
            "a.",
            "a b",
            "a\\b",
            "é",
            "a.git",
            "a/b?x",
            "a/b#",
            "a:b",
            "a/b\n",
            &long,
            "datasets",
            "models/a/b/c",
            "buckets/a",
            "datasets/models/a/b",
        ] {
            assert!(RepoId::parse(bad).is_err(), "{bad}");
        }
        for folder in ["a--b", "buckets--a--b", "models", "trees", "models--a--b--c"] {
            assert_eq!(RepoId::of_folder(folder), None, "{folder}");
        }
    }

    #[test]
    fn revisions_follow_gits_rules() {
        for good in ["main", "v1.0", "refs/pr/1", "feature/é", "a-b_c"] {
            assert!(Revision::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "a//b", "../x", "a/../b", ".a", "a.", "a b", "a\\b", "a:b", "a?", "@"]
        {
            assert!(Revision::parse(bad).is_err(), "{bad}");
        }
        assert!(!Revision::parse(&"A".repeat(40)).unwrap().is_commit());
    }

    #[test]
    fn file_names_stay_inside() {
        for good in ["a", "a/b.safetensors", "..a", "a b", "é"] {
            assert!(check_file_name(good).is_ok(), "{good}");
        }
        for bad in ["", "/a", "a/", "..", "a/../b", "./a", "a//b", "C:a", "a\\b", "a\0", "a\n"] {
            assert!(check_file_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(percent_encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(percent_encoded("a b/é?#%", true), "a%20b/%C3%A9%3F%23%25");
    }
}
