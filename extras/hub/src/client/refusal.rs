//! Interprets an unsuccessful answer of the Hub.

use std::time::Duration;

use super::http::Answer;
use super::retry::Failure;
use crate::error::{Error, ErrorKind, Result};
use crate::repo::{RepoId, Revision};

pub(super) struct RequestSubject<'a> {
    pub(super) repo: &'a RepoId,
    pub(super) revision: &'a Revision,
    pub(super) file: Option<&'a str>,
    pub(super) has_token: bool,
    pub(super) page: String,
}

impl RequestSubject<'_> {
    pub(super) fn refusal(&self, answer: &Answer) -> Failure {
        let status = answer.status();
        let has_token = self.has_token;
        let kind = match (answer.header("x-error-code"), status) {
            (Some("GatedRepo"), _) => ErrorKind::Gated { page: self.page.clone(), has_token },
            (Some("RevisionNotFound"), _) => {
                ErrorKind::RevisionNotFound { revision: self.revision.to_string() }
            }
            (Some("EntryNotFound"), _) => ErrorKind::FileNotFound,
            (Some("RepoNotFound"), _) => ErrorKind::RepoNotFound { has_token },
            // To a stranger the Hub gives the same answer for private and missing repositories.
            (_, 401) if !has_token => ErrorKind::RepoNotFound { has_token },
            (_, 401 | 403) => ErrorKind::Refused { status, has_token },
            (_, 404) if self.file.is_some() => ErrorKind::FileNotFound,
            (_, 404) => ErrorKind::RepoNotFound { has_token },
            _ => return passing_or_final(answer, has_token).map(|error| self.locate(error)),
        };
        Failure::Final(self.locate(kind.into()))
    }

    pub(super) fn check_commit(&self, found: &Revision) -> Result<()> {
        self.revision.check_commit(found)
    }

    pub(super) fn locate(&self, error: Error) -> Error {
        match self.file {
            Some(file) => error.in_file(format_args!("{}: {file}", self.repo)),
            None => error.in_file(self.repo),
        }
    }
}

pub(super) fn passing_or_final(answer: &Answer, has_token: bool) -> Failure {
    let wait = answer.number("retry-after").map(Duration::from_secs);
    let status = answer.status();
    if status == 429 {
        return Failure::Passing { error: ErrorKind::RateLimited { wait, has_token }.into(), wait };
    }
    let detail = answer.header("x-error-message").unwrap_or_default().to_owned();
    let error = ErrorKind::Status { host: answer.url.host(), status, detail }.into();
    match status {
        408 | 500 | 502 | 503 | 504 => Failure::Passing { error, wait },
        _ => Failure::Final(error),
    }
}
