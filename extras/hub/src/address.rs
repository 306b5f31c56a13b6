//! [`HubAddress`]: a text such as `hf://owner/name@revision/file`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::repo::{RepoId, Revision, check_file_name, percent_decoded, percent_encoded};

const SCHEME: &str = "hf";

/// The scheme ignores case (RFC 3986, 3.1).
pub(crate) fn after_scheme<'a>(text: &'a str, scheme: &str) -> Option<&'a str> {
    let (found, rest) = text.split_once("://")?;
    found.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// The address of a repository, or of a folder or file in it, as Python's `huggingface_hub` writes
/// it: `hf://[models/]owner/name[@revision][/path]`, with `datasets`, `spaces` or `kernels` for
/// other kinds, or `hf://buckets/owner/name[/path]`.
///
/// A `/` in a revision is `%2F`, except in `refs/pr/1` and `refs/convert/x`.
///
/// ```
/// use safetensors_hub::HubAddress;
///
/// let address: HubAddress = "hf://owner/name@refs/pr/1/unet/model.safetensors".parse()?;
/// assert_eq!(address.repo().to_string(), "owner/name");
/// assert_eq!(address.revision().to_string(), "refs/pr/1");
/// assert_eq!(address.path(), "unet/model.safetensors");
/// # Ok::<(), safetensors_hub::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubAddress {
    repo: RepoId,
    revision: Revision,
    path: String,
}

impl HubAddress {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = || Error::from(ErrorKind::BadAddress { found: text.into() });
        let rest = after_scheme(text, SCHEME).ok_or_else(bad)?.trim_matches('/');
        // Python's library refuses these, too: the kinds are in the plural.
        let first = rest.split('/').next().unwrap_or_default();
        if RepoId::is_kind(&format!("{first}s")) {
            return Err(bad());
        }
        let names = if RepoId::is_kind(first) { 3 } else { 2 };
        let last = rest.match_indices('/').nth(names - 2).ok_or_else(bad)?.0 + 1;
        let end = rest[last..].find(['/', '@']).map_or(rest.len(), |end| last + end);
        let (repo, rest) = rest.split_at(end);
        let repo = RepoId::parse(repo)?;
        let (revision, path) = match rest.strip_prefix('@') {
            None => (Revision::main(), rest),
            Some(_) if repo.is_bucket() => return Err(bad()),
            Some(rest) => {
                let (revision, path) = rest.split_at(revision_end(rest));
                let revision = percent_decoded(revision).and_then(|it| String::from_utf8(it).ok());
                (Revision::parse(&revision.ok_or_else(bad)?)?, path)
            }
        };
        let path = path.strip_prefix('/').unwrap_or(path).to_owned();
        if !path.is_empty() {
            check_file_name(&path)?;
        }
        Ok(Self { repo, revision, path })
    }

    /// Returns the repository.
    pub fn repo(&self) -> &RepoId {
        &self.repo
    }

    /// Returns the revision, `main` by default.
    pub fn revision(&self) -> &Revision {
        &self.revision
    }

    /// Returns the path in the repository, empty for the repository.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://{}", self.repo)?;
        let revision = self.revision.as_str();
        if special_ref(revision) == Some(revision.len()) {
            write!(f, "@{revision}")?;
        } else if self.revision != Revision::main() {
            write!(f, "@{}", percent_encoded(revision, false))?;
        }
        match self.path.as_str() {
            "" => Ok(()),
            path => write!(f, "/{path}"),
        }
    }
}

impl FromStr for HubAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

fn revision_end(text: &str) -> usize {
    special_ref(text).or_else(|| text.find('/')).unwrap_or(text.len())
}

/// These need no escape.
fn special_ref(text: &str) -> Option<usize> {
    let (before, rest, is_part): (_, _, fn(char) -> bool) =
        if let Some(rest) = text.strip_prefix("refs/pr/") {
            (8, rest, |c| c.is_ascii_digit())
        } else {
            let rest = text.strip_prefix("refs/convert/")?;
            (13, rest, |c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'))
        };
    let part = rest.split('/').next().filter(|part| !part.is_empty())?;
    part.chars().all(is_part).then_some(before + part.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for (text, revision, path) in [
            ("hf://o/n", "main", ""),
            ("hf://o/n@v1", "v1", ""),
            ("hf://o/n/a/b.safetensors", "main", "a/b.safetensors"),
            ("hf://o/n@refs/pr/1/a", "refs/pr/1", "a"),
            ("hf://o/n@refs/convert/parquet-v2", "refs/convert/parquet-v2", ""),
            ("hf://o/n@refs/pr/a", "refs", "pr/a"),
            ("hf://o/n@v%25", "v%", ""),
            ("hf://o/n@feature%2Fx", "feature/x", ""),
            ("hf://o/n/a@b.safetensors", "main", "a@b.safetensors"),
        ] {
            let address = HubAddress::parse(text).unwrap();
            assert_eq!((address.revision().as_str(), address.path()), (revision, path));
            assert_eq!(address.to_string(), text);
            assert_eq!(HubAddress::parse(&format!("{text}/")).unwrap(), address);
            assert_eq!(HubAddress::parse(&text.replace("hf:", "HF:")).unwrap(), address);
        }
    }

    #[test]
    fn addresses_of_every_kind_are_read_and_printed_as_by_python() {
        for (text, repo, revision, path, shown) in [
            ("hf://models/o/n", "o/n", "main", "", "hf://o/n"),
            ("hf://models/o/n@v1/a", "o/n", "v1", "a", "hf://o/n@v1/a"),
            ("hf://o/n@refs%2Fpr%2F1/a", "o/n", "refs/pr/1", "a", "hf://o/n@refs/pr/1/a"),
            ("hf://datasets/o/n", "datasets/o/n", "main", "", "hf://datasets/o/n"),
            (
                "hf://datasets/o/n@refs/convert/parquet/d/a",
                "datasets/o/n",
                "refs/convert/parquet",
                "d/a",
                "hf://datasets/o/n@refs/convert/parquet/d/a",
            ),
            ("hf://spaces/o/n@a%2Fb/f", "spaces/o/n", "a/b", "f", "hf://spaces/o/n@a%2Fb/f"),
            ("hf://kernels/o/n/f@1", "kernels/o/n", "main", "f@1", "hf://kernels/o/n/f@1"),
            ("hf://buckets/o/n/d/f@1", "buckets/o/n", "main", "d/f@1", "hf://buckets/o/n/d/f@1"),
        ] {
            let address = HubAddress::parse(text).unwrap();
            assert_eq!(address.repo().to_string(), repo, "{text}");
            assert_eq!(address.revision().as_str(), revision, "{text}");
            assert_eq!(address.path(), path, "{text}");
            assert_eq!(address.to_string(), shown);
            assert_eq!(HubAddress::parse(shown).unwrap(), address);
        }
    }

    #[test]
    fn hostile_addresses_are_refused() {
        for text in [
            "",
            "hf://",
            "hf://o",
            "hf:///n",
            "s3://o/n",
            "hf://o/n@",
            "hf://o/n@../x",
            "hf://o/n/../x",
            "hf://o/n@%2",
            "hf://o/n@%zz",
            "hf://o/n@%ff",
            "hf://o/n@a%2F..%2Fb",
            "hf://o/n//x",
            "hf://../n",
            "hf://o/n/a\\b",
            "hf://gpt2",
            "hf://models/gpt2",
            "hf://datasets",
            "hf://datasets/squad",
            "hf://dataset/o/n",
            "hf://bucket/o/n",
            "hf://buckets/o",
            "hf://buckets/o/n@main",
            "hf://buckets/o/n@main/f",
        ] {
            assert!(HubAddress::parse(text).is_err(), "{text}");
        }
    }
}
