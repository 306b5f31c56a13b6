//! The CDN: the bytes of large files, at signed addresses.

use super::State;
use super::http::{Answer, Request};

/// Answers a request for `/xet/<sha256>?Signature=…`.
pub(super) fn answer(state: &mut State, request: &Request) -> Answer {
    if request.header("authorization").is_some() {
        return Answer::new(400).body("no token belongs here");
    }
    let signature = request.query.strip_prefix("Signature=").unwrap_or_default();
    match state.signatures.get_mut(signature) {
        Some(uses) if *uses > 0 => *uses -= 1,
        _ => return Answer::new(403).body("the signature has expired"),
    }
    let wanted = request.path.trim_start_matches("/xet/");
    let file = state
        .repos
        .values()
        .flat_map(|repo| repo.commits.values())
        .flat_map(|files| files.values())
        .find(|file| file.etag == wanted);
    match file {
        // The CDN has its own ETags.
        Some(file) => ranged(request, &file.bytes).header("ETag", "\"of-the-cdn\""),
        None => Answer::new(404),
    }
}

/// A whole body, or the range that is asked for. A client that accepts gzip gets no range.
pub(super) fn ranged(request: &Request, bytes: &[u8]) -> Answer {
    let accepts_gzip = request.header("accept-encoding").is_some_and(|it| it.contains("gzip"));
    let range = request.header("range").filter(|_| !accepts_gzip);
    let Some(range) = range.and_then(|range| range.strip_prefix("bytes=")) else {
        return Answer::new(200).header("Accept-Ranges", "bytes").body(bytes);
    };
    let (start, end) = range.split_once('-').unwrap();
    let total = bytes.len();
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(total, |end: usize| (end + 1).min(total));
    if start >= total || start >= end {
        return Answer::new(416).header("Content-Range", format!("bytes */{total}"));
    }
    Answer::new(206)
        .header("Content-Range", format!("bytes {start}-{}/{total}", end - 1))
        .body(&bytes[start..end])
}
