//! [`Client::files`]: which commit a revision is, and which files it has.

use std::io::Read as _;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;

use super::Client;
use super::http::{Answer, Method};
use super::refusal::RequestSubject;
use super::retry::{Attempts, Failure};
use crate::error::{Error, ErrorKind, Result};
use crate::repo::{RepoId, Revision, is_hex, percent_encoded};

/// The most bytes of a listing.
const LIMIT: u64 = 64 << 20;

/// The most redirects that are followed for one listing.
const REDIRECTS: usize = 5;

/// The files of a repository at one commit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepoFiles {
    /// The repository; another one than was asked for if it was renamed and
    /// [`follow_renames`](super::ClientOptions::follow_renames) is set.
    pub repo: RepoId,
    /// The commit: 40 hex digits.
    pub commit: Revision,
    /// The names, in the Hub's order. They are not checked: a hostile server may list any text.
    pub files: Vec<String>,
}

/// The parts of the Hub's answer that are used.
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

impl Client {
    /// Asks which commit a revision is, and which files it has. This is one request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::RepoNotFound`], [`ErrorKind::RevisionNotFound`], [`ErrorKind::Gated`],
    /// [`ErrorKind::Renamed`], [`ErrorKind::RateLimited`], [`ErrorKind::Network`] and the like;
    /// [`ErrorKind::Changed`] if the revision is a commit and the Hub lists another one.
    pub fn files(&self, repo: &RepoId, revision: &Revision) -> Result<RepoFiles> {
        self.files_until(repo, revision, &AtomicBool::new(false))
    }

    pub(crate) fn files_until(
        &self,
        repo: &RepoId,
        revision: &Revision,
        stop: &AtomicBool,
    ) -> Result<RepoFiles> {
        let attempts = Attempts::new(self.shared.patience, self.shared.http.was_reached(), stop);
        self.asking(repo, revision, None, |asked| {
            attempts.run(|| self.ask_files(asked)).map_err(|error| asked.locate(error))
        })
    }

    fn ask_files(&self, asked: &RequestSubject<'_>) -> Result<RepoFiles, Failure> {
        let revision = percent_encoded(asked.revision.as_str(), false);
        let path = |repo: &RepoId| format!("/api/models/{repo}/revision/{revision}");
        let mut repo = asked.repo.clone();
        for _ in 0..REDIRECTS {
            let url = self.at(&path(&repo))?;
            let answer = self.http().send(Method::Get, &url, None)?;
            if answer.is_redirect() {
                let target = answer.target()?;
                let moved = self.moved(&target, &repo, "/api/models/", "/revision/");
                let lost = || answer.bad("it sends the question for files to another address");
                repo = self.renamed(moved.ok_or_else(lost)?)?;
            } else if answer.status() == 200 {
                let listed = read(answer, repo)?;
                asked.check_commit(&listed.commit)?;
                return Ok(listed);
            } else {
                return Err(asked.refusal(&answer));
            }
        }
        let problem = "it sends from one address to the next".into();
        Err(ErrorKind::BadAnswer { host: self.http().endpoint().host(), problem }.into())
    }
}

/// Reads the body of a listing.
fn read(answer: Answer, repo: RepoId) -> Result<RepoFiles, Failure> {
    let bad = answer.bad("the list of files is malformed");
    let too_long = answer.bad(format!("the list of files is over the limit of {LIMIT} bytes"));
    let (url, mut body, _span) = answer.into_body();
    let mut json = Vec::new();
    body.as_reader()
        .take(LIMIT + 1)
        .read_to_end(&mut json)
        .map_err(|error| super::http::failed(&url, &ureq::Error::from(error)))?;
    if json.len() as u64 > LIMIT {
        return Err(too_long.into());
    }
    let Ok(info) = serde_json::from_slice::<Info>(&json) else { return Err(bad.into()) };
    if !is_hex(&info.sha, 40) {
        return Err(Failure::Final(bad));
    }
    let commit = Revision::parse(&info.sha).map_err(|_: Error| Failure::Final(bad))?;
    let files = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    Ok(RepoFiles { repo, commit, files })
}
