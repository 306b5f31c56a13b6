//! The repositories of the test server.

use std::collections::BTreeMap;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

/// A repository: its branches and tags, and the files of each commit.
#[derive(Clone, Debug, Default)]
pub struct Repo {
    pub refs: BTreeMap<String, String>,
    pub commits: BTreeMap<String, BTreeMap<String, File>>,
    pub access: Access,
    /// The new name, if it was renamed.
    pub renamed_to: Option<String>,
}

/// Who may read a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Everyone,
    /// With the right token.
    Private,
    /// With the right token, after conditions were accepted. Everyone may list the files.
    Gated,
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub struct File {
    pub bytes: Vec<u8>,
    /// Whether it is at the CDN, and has a SHA-256.
    pub is_large: bool,
    /// The Hub's identifier of the content.
    pub etag: String,
}

impl File {
    fn new(bytes: Vec<u8>, is_large: bool) -> Self {
        let etag = if is_large {
            hex(digest(&SHA256, &bytes).as_ref())
        } else {
            let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            hash.update(format!("blob {}\0", bytes.len()).as_bytes());
            hash.update(&bytes);
            hex(hash.finish().as_ref())
        };
        Self { bytes, is_large, etag }
    }
}

impl Repo {
    /// A repository with one commit, on the branch `main`.
    pub fn new<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        Self::default().commit("main", files)
    }

    /// Adds a commit with these files, and has a branch lead to it. Files that end in
    /// `.safetensors` are large. The commit's id is made of its content.
    #[must_use]
    pub fn commit<'a>(
        mut self,
        branch: &str,
        files: impl IntoIterator<Item = (&'a str, Vec<u8>)>,
    ) -> Self {
        let file = |(name, bytes): (&str, Vec<u8>)| {
            (name.to_owned(), File::new(bytes, name.ends_with(".safetensors")))
        };
        let files: BTreeMap<_, _> = files.into_iter().map(file).collect();
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        for (name, file) in &files {
            hash.update(name.as_bytes());
            hash.update(file.etag.as_bytes());
        }
        let id = hex(hash.finish().as_ref());
        self.commits.insert(id.clone(), files);
        self.refs.insert(branch.to_owned(), id);
        self
    }

    /// Gives all files the same ETag, which is no digest, as a server may that makes it of the time
    /// and the length. The Hub sends them itself.
    #[must_use]
    pub fn alike(mut self, etag: &str) -> Self {
        for file in self.commits.values_mut().flat_map(BTreeMap::values_mut) {
            (file.etag, file.is_large) = (etag.to_owned(), false);
        }
        self
    }

    /// Sets who may read it.
    #[must_use]
    pub fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// Returns the commit of a branch, a tag or a commit.
    pub fn resolve(&self, revision: &str) -> Option<&str> {
        let known = || self.commits.get_key_value(revision).map(|(commit, _)| commit);
        self.refs.get(revision).or_else(known).map(String::as_str)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
