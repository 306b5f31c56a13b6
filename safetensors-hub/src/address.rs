//! [`HubAddress`]: a text such as `hf://owner/name@revision/file`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::repo::{RepoId, Revision, check_file_name, percent_decoded, percent_encoded};

/// The scheme of the address of something on the Hub.
const SCHEME: &str = "hf";

/// What follows `scheme://`, which may be in lower or upper case (RFC 3986, 3.1); `None` if the
/// text is no such address.
pub(crate) fn after_scheme<'a>(text: &'a str, scheme: &str) -> Option<&'a str> {
    let (found, rest) = text.split_once("://")?;
    found.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// The address of a repository, of one of its folders or of one of its files:
/// `hf://owner/name[@revision][/path]`.
///
/// A revision that contains `/` is written with `%2F`, except for those of the forms `refs/pr/1`
/// and `refs/convert/x`.
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
    /// Parses an address.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadAddress`], [`ErrorKind::BadRepoId`], [`ErrorKind::BadRevision`],
    /// [`ErrorKind::UnsafeName`].
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = || Error::from(ErrorKind::BadAddress { found: text.into() });
        let rest = after_scheme(text, SCHEME).ok_or_else(bad)?.trim_end_matches('/');
        let (owner, rest) = rest.split_once('/').ok_or_else(bad)?;
        let end = rest.find(['/', '@']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let repo = RepoId::parse(&format!("{owner}/{name}"))?;
        let (revision, path) = match rest.strip_prefix('@') {
            None => (Revision::main(), rest),
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

    /// The repository.
    pub fn repo(&self) -> &RepoId {
        &self.repo
    }

    /// The revision; `main` if the address has none.
    pub fn revision(&self) -> &Revision {
        &self.revision
    }

    /// The path in the repository; empty for the repository itself.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for HubAddress {
    /// The address, which `parse` reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://{}", self.repo)?;
        if self.revision != Revision::main() {
            let revision = percent_encoded(self.revision.as_str(), false);
            write!(f, "@{revision}")?;
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

/// Where the revision at the start of a text ends.
fn revision_end(text: &str) -> usize {
    let parts =
        if text.starts_with("refs/pr/") || text.starts_with("refs/convert/") { 3 } else { 1 };
    text.match_indices('/').nth(parts - 1).map_or(text.len(), |(end, _)| end)
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
            ("hf://o/n@refs%2Fpr%2F1/a", "refs/pr/1", "a"),
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
        ] {
            assert!(HubAddress::parse(text).is_err(), "{text}");
        }
    }
}
