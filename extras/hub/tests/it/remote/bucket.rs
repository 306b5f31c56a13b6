//! [`Bucket`]: a server of S3 on the loopback that knows uploads in parts, and nothing but them.

use std::collections::BTreeMap;
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
                let bytes = parts.into_values().flatten().collect();
                let path = request.path.trim_matches('/').to_owned();
                self.objects.lock().unwrap().insert(path, bytes);
                Answer::new(200).body(
                    "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag>\
                     </CompleteMultipartUploadResult>",
                )
            }
            ("DELETE", Some(id), None) => {
                Answer::new(if uploads.remove(&id).is_some() { 204 } else { 404 })
            }
            // Nothing is in the bucket before the upload.
            ("GET", None, None) if request.query.contains("list-type=2") => {
                Answer::new(200).body("<ListBucketResult></ListBucketResult>")
            }
            ("GET" | "HEAD", None, None) => Answer::new(404),
            _ => Answer::new(405),
        }
    }
}
