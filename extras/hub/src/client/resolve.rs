//! [`Resolved`]: the Hub's answer about a file, with the address of its bytes.

use super::Client;
use super::http::{Answer, Method};
use super::refusal::RequestSubject;
use super::retry::Failure;
use super::url::Url;
use crate::error::{Error, ErrorKind, Result};
use crate::etag::Etag;
use crate::repo::{RepoId, Revision, is_hex, percent_encoded};

const REDIRECTS: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) repo: RepoId,
    pub(super) commit: Revision,
    pub(super) etag: Etag,
    /// `false`: only a redirect's header had it.
    pub(super) etag_is_of_body: bool,
    pub(super) size: u64,
    /// Often signed, on another host.
    pub(super) url: Url,
}

impl Client {
    pub(super) fn resolve(
        &self,
        repo: &RepoId,
        revision: &Revision,
        path: &str,
    ) -> Result<Resolved, Failure> {
        let asked = self.subject(repo, revision, Some(path));
        let answer = self.first_answer(&asked, path);
        answer.map_err(|failure| failure.map(|error| asked.locate(error)))
    }

    fn first_answer(&self, asked: &RequestSubject<'_>, path: &str) -> Result<Resolved, Failure> {
        let mut repo = asked.repo.clone();
        let mut url = self.at_file(&repo, asked.revision, path)?;
        let mut commit = repo.is_bucket().then(|| asked.revision.clone());
        for _ in 0..REDIRECTS {
            let answer = self.http().send(Method::Head, &url, None)?;
            commit = commit_of(&answer, asked)?.or(commit);
            let target = match answer.status() {
                200 => None,
                _ if answer.is_redirect() => Some(answer.target()?),
                _ => return Err(asked.refusal(&answer)),
            };
            let is_here = target.as_ref().is_none_or(|to| to.has_origin_of(self.http().endpoint()));
            match (etag_of(&answer)?, size_of(&answer)?, commit.clone()) {
                (Some(etag), Some(size), Some(commit)) => {
                    let etag_is_of_body =
                        target.is_none() && answer.header("x-linked-etag").is_none();
                    let url = target.unwrap_or(url);
                    // The branch may lead to another commit by the time the bytes are asked for.
                    let is_of_branch = url.has_origin_of(self.http().endpoint())
                        && url.path() == self.at_file(&repo, asked.revision, path)?.path();
                    let url = if is_of_branch { self.at_file(&repo, &commit, path)? } else { url };
                    return Ok(Resolved { repo, commit, etag, etag_is_of_body, size, url });
                }
                // Another place of the Hub is asked next.
                _ if is_here && target.is_some() => {}
                (None, ..) => return Err(lacks(&answer, "ETag")),
                (_, None, _) => return Err(lacks(&answer, "size")),
                (_, _, None) => return Err(lacks(&answer, "commit")),
            }
            let Some(target) = target else { break };
            // Another place of the Hub: for a small file, or a renamed repository.
            match self.moved(&target, &repo, "/", "/resolve/") {
                Some(new) => {
                    repo = self.renamed(new)?;
                    url = self.at_file(&repo, asked.revision, path)?;
                }
                None => url = target,
            }
        }
        Err(self.http().endpoint().in_a_circle().into())
    }

    fn at_file(&self, repo: &RepoId, revision: &Revision, path: &str) -> Result<Url> {
        let path = percent_encoded(path, true);
        if repo.is_bucket() {
            return self.at(&format!("/{repo}/resolve/{path}"));
        }
        let revision = percent_encoded(revision.as_str(), false);
        self.at(&format!("/{repo}/resolve/{revision}/{path}"))
    }

    pub(super) fn at(&self, path: &str) -> Result<Url> {
        let endpoint = self.endpoint();
        let bad = |problem| ErrorKind::BadEndpoint { found: endpoint.into(), problem }.into();
        Url::parse(&format!("{endpoint}{path}")).map_err(bad)
    }

    pub(super) fn moved(
        &self,
        target: &Url,
        repo: &RepoId,
        before: &str,
        after: &str,
    ) -> Option<RepoId> {
        let root = self.http().endpoint();
        if !target.has_origin_of(root) {
            return None;
        }
        let path = target.path().strip_prefix(root.path().trim_end_matches('/'))?;
        let name = path.strip_prefix(before)?.split_once(after)?.0;
        RepoId::parse(name).ok().filter(|name| name != repo)
    }

    /// Fails unless renames are followed.
    pub(super) fn renamed(&self, new: RepoId) -> Result<RepoId> {
        // Not by default: the next owner of the old name decides where it leads.
        if self.shared.follow_renames {
            Ok(new)
        } else {
            Err(ErrorKind::Renamed { to: new.to_string() }.into())
        }
    }
}

fn commit_of(answer: &Answer, asked: &RequestSubject<'_>) -> Result<Option<Revision>> {
    let Some(text) = answer.header("x-repo-commit") else { return Ok(None) };
    if !is_hex(text, 40) {
        return Err(answer.bad("its X-Repo-Commit is no commit"));
    }
    let commit = Revision::parse(text)?;
    asked.check_commit(&commit)?;
    Ok(Some(commit))
}

/// On a redirect only the Hub's own header is about the file. For a bucket it may be only Xet's
/// hash.
fn etag_of(answer: &Answer) -> Result<Option<Etag>> {
    let names = ["x-linked-etag", "etag", "x-xet-hash"];
    let found = names.iter().find_map(|name| Some((answer.header(name)?, *name == names[0])));
    let Some((header, is_linked)) = found else { return Ok(None) };
    let bad = || answer.bad("its ETag cannot be the name of a file");
    Etag::of_header(header, is_linked).map(Some).ok_or_else(bad)
}

fn size_of(answer: &Answer) -> Result<Option<u64>> {
    if let Some(header) = answer.header("x-linked-size") {
        return header.parse().map(Some).map_err(|_| answer.bad("its X-Linked-Size is no number"));
    }
    if answer.is_redirect() {
        return Ok(None);
    }
    answer.check_not_compressed()?;
    Ok(answer.content_length())
}

fn lacks(answer: &Answer, what: &str) -> Failure {
    Failure::Final(answer.bad(format!("it does not say the {what} of the file; is it a Hub?")))
}

pub(super) fn changed(before: &Resolved, now: &Resolved) -> Option<Error> {
    let error = |what, before: String, now: String| {
        Some(Error::from(ErrorKind::Changed { what, before, now }))
    };
    if before.etag != now.etag {
        error("ETag", before.etag.to_string(), now.etag.to_string())
    } else if before.size != now.size {
        error("size", before.size.to_string(), now.size.to_string())
    } else {
        None
    }
}
