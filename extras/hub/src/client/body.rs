//! The bytes of a range: checks a server's answer, then reads it.

use std::io::{self, Read};
use std::ops::Range;

use safetensors_core::framework::Span;
use ureq::BodyReader;

use super::http::{Answer, Http, Method, failed};
use super::refusal::passing_or_final;
use super::resolve::Resolved;
use super::retry::Failure;
use super::url::Url;
use crate::error::{ErrorKind, Result};
use crate::etag::Etag;

const REDIRECTS: usize = 5;

const PIECE: usize = 128 << 10;

/// Read in vain before a range if a server sends the entire file. Ranges to the end have no limit:
/// downloads continue this way.
const SKIPPED: u64 = 4 << 20;

pub(super) struct RangeBody {
    url: Url,
    body: BodyReader<'static>,
    skip: u64,
    left: u64,
    /// The server sends the range alone.
    pub(super) is_range: bool,
    /// The body must end with the range.
    ends_with_range: bool,
    _span: Span,
}

/// An answer of the Hub itself must have the same commit and identifying ETag.
pub(super) fn open(
    http: &Http,
    url: &Url,
    range: &Range<u64>,
    file: &Resolved,
) -> Result<RangeBody, Failure> {
    let header = format!("bytes={}-{}", range.start, range.end - 1);
    let is_whole = *range == (0..file.size);
    let mut url = url.clone();
    for _ in 0..REDIRECTS {
        let answer = http.send(Method::Get, &url, (!is_whole).then_some(&header))?;
        if url.has_origin_of(http.endpoint()) {
            check_same(&answer, file)?;
        }
        if answer.is_redirect() {
            url = answer.target()?;
            continue;
        }
        let skip = match answer.status() {
            206 => check_partial(&answer, range, file.size).map(|()| 0),
            // The server has no ranges, or was asked for none.
            200 => check_whole(&answer, range, file.size).map(|()| range.start),
            _ => Err(refused(&answer, http.has_token())),
        }?;
        answer.check_not_compressed().map_err(Failure::passing)?;
        let is_range = answer.status() == 206;
        let ends_with_range = is_range || range.end == file.size;
        let (url, body, span) = answer.into_body();
        let left = range.end - range.start;
        let body = body.into_reader();
        return Ok(RangeBody { url, body, skip, left, is_range, ends_with_range, _span: span });
    }
    Err(Failure::passing(url.in_a_circle()))
}

fn check_partial(answer: &Answer, range: &Range<u64>, size: u64) -> Result<(), Failure> {
    check_content_range(answer, range, size)?;
    check_length(answer, range.end - range.start)
}

fn check_whole(answer: &Answer, range: &Range<u64>, size: u64) -> Result<(), Failure> {
    if range.start > SKIPPED && range.end < size {
        let problem = "it ignores ranges and sends the entire file; download the file";
        return Err(Failure::passing(answer.bad(problem)));
    }
    check_length(answer, size)
}

/// A signed address may have expired.
fn refused(answer: &Answer, has_token: bool) -> Failure {
    match (passing_or_final(answer, has_token), answer.status()) {
        (Failure::Final(error), 401 | 403 | 404 | 410) => Failure::Expired(error),
        (Failure::Final(error), 416) => Failure::passing(error),
        (failure, _) => failure,
    }
}

fn check_same(answer: &Answer, file: &Resolved) -> Result<(), Failure> {
    if !matches!(answer.status(), 200 | 206) && !answer.is_redirect() {
        return Ok(());
    }
    check_value("commit", file.commit.as_str(), answer.header("x-repo-commit"))?;
    let linked = answer.header("x-linked-etag");
    let is_of_body = file.etag_is_of_body && !answer.is_redirect();
    let header = linked.or_else(|| answer.header("etag").filter(|_| is_of_body));
    check_value("ETag", file.etag.as_str(), header.map(Etag::text_of))
}

fn check_value(what: &'static str, before: &str, now: Option<&str>) -> Result<(), Failure> {
    match now {
        Some(now) if now != before => {
            let kind = ErrorKind::Changed { what, before: before.into(), now: now.into() };
            Err(Failure::Final(kind.into()))
        }
        _ => Ok(()),
    }
}

fn check_content_range(answer: &Answer, range: &Range<u64>, size: u64) -> Result<(), Failure> {
    let expected = format!("bytes {}-{}", range.start, range.end - 1);
    let found = answer.header("content-range").unwrap_or_default();
    let is_right = found.split_once('/').is_some_and(|(found, total)| {
        found.eq_ignore_ascii_case(&expected) && (total == "*" || total.parse() == Ok(size))
    });
    if is_right {
        Ok(())
    } else {
        let problem = format!("asked for {expected}/{size}, it answers with {found:?}");
        Err(Failure::passing(answer.bad(problem)))
    }
}

fn check_length(answer: &Answer, expected: u64) -> Result<(), Failure> {
    match answer.content_length() {
        Some(found) if found != expected => {
            let problem = format!("it sends {found} bytes, expected {expected}");
            Err(Failure::passing(answer.bad(problem)))
        }
        _ => Ok(()),
    }
}

impl RangeBody {
    /// In pieces. An error of `sink` is final.
    pub(super) fn copy(
        &mut self,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; PIECE];
        while self.left > 0 {
            let part = if self.skip > 0 { self.skip } else { self.left };
            let len = usize::try_from(part).unwrap_or(PIECE).min(PIECE);
            let read = match self.body.read(&mut buffer[..len]) {
                Ok(0) => return Err(self.ended()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(&self.url, &ureq::Error::from(error))),
            };
            if self.skip > 0 {
                self.skip -= read as u64;
                continue;
            }
            sink(&buffer[..read])?;
            self.left -= read as u64;
        }
        // The client keeps the connection for the next range only after the end was read.
        if self.ends_with_range && self.body.read(&mut buffer[..1]).is_ok_and(|read| read > 0) {
            let problem = "it sends more bytes than the file has".into();
            Err(Failure::Final(ErrorKind::BadAnswer { host: self.url.host(), problem }.into()))
        } else {
            Ok(())
        }
    }

    fn ended(&self) -> Failure {
        let problem = format!("the answer ended {} bytes too early", self.left + self.skip);
        Failure::passing(ErrorKind::Network { host: self.url.host(), problem })
    }
}
