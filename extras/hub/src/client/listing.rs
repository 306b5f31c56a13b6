//! [`Client::files`]: the commit of a revision, and its files. The content of a bucket.

use std::io::Read as _;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Client;
use super::http::{Answer, Method};
use super::refusal::RequestSubject;
use super::retry::Failure;
#[cfg(feature = "remote")]
use super::url::Url;
use crate::error::Result;
use crate::repo::{RepoId, Revision, is_hex, percent_encoded};

const LIMIT: u64 = 64 << 20;

const REDIRECTS: usize = 5;

/// The files of a repository at one commit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepoFiles {
    /// The repository, under its new name if it was renamed and
    /// [`follow_renames`](super::ClientOptions::follow_renames) is set.
    pub repo: RepoId,
    /// The commit: 40 hex digits.
    pub commit: Revision,
    /// The names in the Hub's order. They are not checked: a hostile server may list any text.
    pub files: Vec<String>,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

#[cfg(feature = "remote")]
#[derive(Deserialize)]
pub(crate) struct BucketEntry {
    pub(crate) path: String,
    /// `file`, `directory`, or an unknown kind.
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

impl Client {
    /// Asks for the commit of a revision, and its files, by one request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind`](crate::ErrorKind): `RepoNotFound`, `RevisionNotFound`, `Gated`, `Renamed`,
    /// `RateLimited`, `Network` and the like; `Changed` if the Hub lists a different commit.
    pub fn files(&self, repo: &RepoId, revision: &Revision) -> Result<RepoFiles> {
        self.files_until(repo, revision, &AtomicBool::new(false))
    }

    pub(crate) fn files_until(
        &self,
        repo: &RepoId,
        revision: &Revision,
        stop: &AtomicBool,
    ) -> Result<RepoFiles> {
        let asked = self.subject(repo, revision, None);
        let listed = self.attempts(stop).run(|| self.ask_files(&asked));
        listed.map_err(|error| asked.locate(error))
    }

    fn ask_files(&self, asked: &RequestSubject<'_>) -> Result<RepoFiles, Failure> {
        let revision = percent_encoded(asked.revision.as_str(), false);
        let mut repo = asked.repo.clone();
        for _ in 0..REDIRECTS {
            let url = self.at(&format!("/api/{}/revision/{revision}", repo.with_kind()))?;
            let answer = self.http().send(Method::Get, &url, None)?;
            if answer.is_redirect() {
                let target = answer.target()?;
                let moved = self.moved(&target, &repo, "/api/", "/revision/");
                let lost = || answer.bad("it sends the question for files to another address");
                repo = self.renamed(moved.ok_or_else(lost)?)?;
            } else if answer.status() == 200 {
                let bad = answer.bad("the list of files has no commit");
                let Info { sha, siblings } = read(answer, LIMIT)?.0;
                if !is_hex(&sha, 40) {
                    return Err(Failure::Final(bad));
                }
                let commit = Revision::parse(&sha)?;
                asked.check_commit(&commit)?;
                let files = siblings.into_iter().map(|sibling| sibling.rfilename).collect();
                return Ok(RepoFiles { repo, commit, files });
            } else {
                return Err(asked.refusal(&answer));
            }
        }
        Err(self.http().endpoint().in_a_circle().into())
    }

    /// Not recursively. A missing directory is empty.
    #[cfg(feature = "remote")]
    pub(crate) fn bucket_entries(
        &self,
        bucket: &RepoId,
        directory: &str,
    ) -> Result<Vec<BucketEntry>> {
        let prefix = match directory {
            "" => String::new(),
            _ => format!("/{}", percent_encoded(directory, false)),
        };
        let main = Revision::main();
        let asked = self.subject(bucket, &main, None);
        let mut entries: Vec<BucketEntry> = Vec::new();
        let mut left = LIMIT;
        let mut page = Some(self.at(&format!("/api/{bucket}/tree{prefix}?recursive=false"))?);
        while let Some(url) = page {
            let answered = self.attempts(&AtomicBool::new(false)).run(|| {
                let answer = self.http().send(Method::Get, &url, None)?;
                if answer.status() != 200 {
                    return Err(asked.refusal(&answer));
                }
                let next = self.next_page(&answer)?;
                let (listed, len) = read::<Vec<BucketEntry>>(answer, left)?;
                Ok((listed, len, next))
            });
            let (listed, len, next) = answered.map_err(|error| asked.locate(error))?;
            // A page counts, too, so that empty ones come to an end.
            left = left.saturating_sub(len.max(1 << 10));
            entries.extend(listed);
            page = next;
        }
        // The Hub compares the start of the entire text, so others may be among them.
        entries.retain(|entry| {
            entry.path.rsplit_once('/').map_or("", |(parent, _)| parent) == directory
        });
        Ok(entries)
    }

    #[cfg(feature = "remote")]
    fn next_page(&self, answer: &Answer) -> Result<Option<Url>> {
        let links = answer.header("link").unwrap_or_default().split(',');
        let next = links.filter_map(|link| link.trim().split_once(">;")).find(|(_, rest)| {
            rest.split(';').any(|it| matches!(it.trim(), "rel=\"next\"" | "rel=next"))
        });
        let Some((location, _)) = next else { return Ok(None) };
        let target = answer.url.join(location.trim_start_matches('<'));
        match target.filter(|target| target.has_origin_of(self.http().endpoint())) {
            Some(target) => Ok(Some(target)),
            None => Err(answer.bad("the next page of the list is at no address of the Hub")),
        }
    }
}

fn read<T: DeserializeOwned>(answer: Answer, limit: u64) -> Result<(T, u64), Failure> {
    let bad = answer.bad("the list of files is malformed");
    let too_long = answer.bad(format!("the list of files is over the limit of {LIMIT} bytes"));
    let (url, mut body, _span) = answer.into_body();
    let mut json = Vec::new();
    body.as_reader()
        .take(limit + 1)
        .read_to_end(&mut json)
        .map_err(|error| super::http::failed(&url, &ureq::Error::from(error)))?;
    let len = json.len() as u64;
    if len > limit {
        return Err(too_long.into());
    }
    serde_json::from_slice(&json).map(|list| (list, len)).map_err(|_| bad.into())
}
