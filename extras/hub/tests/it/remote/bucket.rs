//! [`Bucket`]: a server of S3 on the loopback that keeps objects in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::server::http::{self, Answer, Request};

/// The state of the server.
#[derive(Default)]
struct State {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The parts of uploads that are neither complete nor aborted, by the number of the upload.
    uploads: Mutex<BTreeMap<usize, BTreeMap<usize, Vec<u8>>>>,
    begun: AtomicUsize,
    /// Parts from this number on get no answer.
    answered: AtomicUsize,
    /// The prefix with listings that are refused, and their status.
    refused: Mutex<Option<(String, u16)>>,
}

/// A bucket on its own port, until the process ends.
pub(crate) struct Bucket {
    state: Arc<State>,
    /// The endpoint.
    pub(crate) endpoint: String,
}

impl Bucket {
    pub(crate) fn new() -> Self {
        let state = Arc::new(State { answered: usize::MAX.into(), ..State::default() });
        let shared = Arc::clone(&state);
        let at = http::serve(move |request| (shared.answer(request), Box::new(drop) as http::Sent));
        Self { state, endpoint: format!("http://{at}") }
    }

    /// From now on only the first parts of each upload get an answer.
    pub(crate) fn answer_parts(&self, first: usize) {
        self.state.answered.store(first, Ordering::SeqCst);
    }

    /// Puts an object, by the path that has the name of the bucket.
    pub(crate) fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.state.objects.lock().unwrap().insert(path.to_owned(), bytes.into());
    }

    /// The paths of all objects.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.state.objects.lock().unwrap().keys().cloned().collect()
    }

    /// From now on each listing of a prefix is answered with this status.
    pub(crate) fn refuse_listings(&self, prefix: &str, status: u16) {
        *self.state.refused.lock().unwrap() = Some((prefix.to_owned(), status));
    }

    /// An object, by the path that has the name of the bucket.
    pub(crate) fn object(&self, path: &str) -> Option<Vec<u8>> {
        self.state.objects.lock().unwrap().get(path).cloned()
    }

    /// Returns the number of uploads that were ever begun.
    pub(crate) fn begun(&self) -> usize {
        self.state.begun.load(Ordering::SeqCst)
    }

    /// Returns the numbers of parts that have arrived, of each upload that is neither complete nor
    /// aborted.
    pub(crate) fn unfinished(&self) -> Vec<usize> {
        self.state.uploads.lock().unwrap().values().map(BTreeMap::len).collect()
    }
}

impl State {
    fn answer(&self, request: &Request) -> Answer {
        let value = |name: &str| {
            let pair = request.query.split('&').find_map(|pair| pair.strip_prefix(name));
            pair.and_then(|value| value.strip_prefix('=')?.parse::<usize>().ok())
        };
        let mut uploads = self.uploads.lock().unwrap();
        match (request.method.as_str(), value("uploadId"), value("partNumber")) {
            ("POST", None, None) if request.query.starts_with("uploads") => {
                let id = self.begun.fetch_add(1, Ordering::SeqCst);
                uploads.insert(id, BTreeMap::new());
                Answer::new(200).body(format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId>\
                     </InitiateMultipartUploadResult>"
                ))
            }
            ("PUT", Some(id), Some(part)) => {
                let Some(parts) = uploads.get_mut(&id) else { return Answer::new(404) };
                parts.insert(part, request.body.clone());
                drop(uploads);
                if part > self.answered.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_secs(60));
                }
                Answer::new(200).header("ETag", "\"part\"")
            }
            ("POST", Some(id), None) => {
                let Some(parts) = uploads.remove(&id) else { return Answer::new(404) };
                let bytes: Vec<u8> = parts.into_values().flatten().collect();
                let etag = tag(&bytes);
                let path = request.path.trim_matches('/').to_owned();
                self.objects.lock().unwrap().insert(path, bytes);
                Answer::new(200).body(format!(
                    "<CompleteMultipartUploadResult><ETag>{etag}</ETag>\
                     </CompleteMultipartUploadResult>"
                ))
            }
            ("DELETE", Some(id), None) => {
                Answer::new(if uploads.remove(&id).is_some() { 204 } else { 404 })
            }
            ("GET", None, None) if request.query.contains("list-type=2") => self.list(request),
            (_, None, None) => self.object(request),
            _ => Answer::new(405),
        }
    }

    /// Lists the objects and the folders just below a prefix.
    fn list(&self, request: &Request) -> Answer {
        let prefix = request.query.split('&').find_map(|pair| pair.strip_prefix("prefix="));
        let prefix = prefix.unwrap_or_default().replace("%2F", "/");
        if let Some((refused, status)) = &*self.refused.lock().unwrap()
            && *refused == prefix
        {
            return Answer::new(*status);
        }
        let bucket = request.path.trim_matches('/');
        let mut lines = BTreeSet::new();
        for (path, bytes) in &*self.objects.lock().unwrap() {
            let Some(key) = path.strip_prefix(bucket).and_then(|key| key.strip_prefix('/')) else {
                continue;
            };
            let Some(below) = key.strip_prefix(&prefix) else { continue };
            lines.insert(match below.split_once('/') {
                Some((folder, _)) => {
                    format!("<CommonPrefixes><Prefix>{prefix}{folder}/</Prefix></CommonPrefixes>")
                }
                None => format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z\
                     </LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                    tag(bytes),
                    bytes.len()
                ),
            });
        }
        let lines: String = lines.into_iter().collect();
        Answer::new(200).body(format!(
            "<ListBucketResult><IsTruncated>false</IsTruncated>{lines}</ListBucketResult>"
        ))
    }

    /// Reads, writes or removes an object.
    fn object(&self, request: &Request) -> Answer {
        let path = request.path.trim_matches('/');
        let mut objects = self.objects.lock().unwrap();
        let found = objects.get(path);
        match request.method.as_str() {
            "PUT" => {
                let is_other = request.header("if-match").is_some_and(|expected| {
                    found.is_none_or(|bytes| {
                        tag(bytes).trim_matches('"') != expected.trim_matches('"')
                    })
                });
                if is_other || request.header("if-none-match").is_some() && found.is_some() {
                    return Answer::new(412);
                }
                let etag = tag(&request.body);
                objects.insert(path.to_owned(), request.body.clone());
                Answer::new(200).header("ETag", etag)
            }
            "DELETE" => {
                objects.remove(path);
                Answer::new(204)
            }
            "GET" | "HEAD" => {
                let Some(bytes) = found else { return Answer::new(404) };
                let answer = match request.range() {
                    Some((first, last)) => {
                        let last = (last as usize).min(bytes.len() - 1);
                        let range = format!("bytes {first}-{last}/{}", bytes.len());
                        let body = bytes[first as usize..=last].to_vec();
                        Answer::new(206).header("Content-Range", range).body(body)
                    }
                    None => Answer::new(200).body(bytes.clone()),
                };
                answer
                    .header("ETag", tag(bytes))
                    .header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            }
            _ => Answer::new(405),
        }
    }
}

/// The ETag of an object.
fn tag(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("\"{:x}\"", hasher.finish())
}
