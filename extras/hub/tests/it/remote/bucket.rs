//! [`Bucket`]: a server of S3 on the loopback that knows uploads in parts, and nothing but them.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the server has.
#[derive(Default)]
struct State {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The parts of uploads that are neither complete nor aborted, by the number of the upload.
    uploads: Mutex<BTreeMap<usize, BTreeMap<usize, Vec<u8>>>>,
    begun: AtomicUsize,
    /// Parts from this number on get no answer.
    answered: AtomicUsize,
}

/// A bucket on a port of its own, until the process ends.
pub(crate) struct Bucket {
    state: Arc<State>,
    at: SocketAddr,
}

impl Bucket {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let state = Arc::new(State { answered: usize::MAX.into(), ..State::default() });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                // A client that goes away is no failure of the server.
                thread::spawn(move || _ = state.serve(stream));
            }
        });
        Self { state, at }
    }

    /// The endpoint.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.at)
    }

    /// From now on only the first parts of each upload get an answer.
    pub(crate) fn answer_parts(&self, first: usize) {
        self.state.answered.store(first, Ordering::SeqCst);
    }

    /// An object, by the path that has the name of the bucket.
    pub(crate) fn object(&self, path: &str) -> Option<Vec<u8>> {
        self.state.objects.lock().unwrap().get(path).cloned()
    }

    /// The number of uploads that were ever begun.
    pub(crate) fn begun(&self) -> usize {
        self.state.begun.load(Ordering::SeqCst)
    }

    /// The numbers of parts that have arrived, of each upload that is neither complete nor aborted.
    pub(crate) fn unfinished(&self) -> Vec<usize> {
        self.state.uploads.lock().unwrap().values().map(BTreeMap::len).collect()
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut first = String::new();
            if stream.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let mut len = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line)?;
                let Some((name, value)) = line.trim().split_once(':') else { break };
                if name.eq_ignore_ascii_case("content-length") {
                    len = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; len];
            stream.read_exact(&mut body)?;
            let words: Vec<_> = first.split_whitespace().collect();
            let (path, query) = words[1].split_once('?').unwrap_or((words[1], ""));
            let (status, head, text) = self.answer(words[0], path, query, body);
            let head = format!("Content-Length: {}\r\n{head}", text.len());
            write!(stream.get_mut(), "HTTP/1.1 {status} Told\r\n{head}\r\n{text}")?;
        }
    }

    /// The status, the other headers and the body of an answer.
    fn answer(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Vec<u8>,
    ) -> (u16, &'static str, String) {
        let value = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(name));
            pair.and_then(|value| value.strip_prefix('=')?.parse::<usize>().ok())
        };
        let mut uploads = self.uploads.lock().unwrap();
        match (method, value("uploadId"), value("partNumber")) {
            ("POST", None, None) if query.starts_with("uploads") => {
                let id = self.begun.fetch_add(1, Ordering::SeqCst);
                uploads.insert(id, BTreeMap::new());
                let text = format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId>\
                     </InitiateMultipartUploadResult>"
                );
                (200, "", text)
            }
            ("PUT", Some(id), Some(part)) => {
                let Some(parts) = uploads.get_mut(&id) else { return (404, "", String::new()) };
                parts.insert(part, body);
                drop(uploads);
                if part > self.answered.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_secs(60));
                }
                (200, "ETag: \"part\"\r\n", String::new())
            }
            ("POST", Some(id), None) => {
                let Some(parts) = uploads.remove(&id) else { return (404, "", String::new()) };
                let bytes = parts.into_values().flatten().collect();
                self.objects.lock().unwrap().insert(path.trim_matches('/').to_owned(), bytes);
                let text = "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag>\
                            </CompleteMultipartUploadResult>";
                (200, "", text.to_owned())
            }
            ("DELETE", Some(id), None) => {
                (if uploads.remove(&id).is_some() { 204 } else { 404 }, "", String::new())
            }
            // Nothing lies in the bucket before the upload.
            ("GET", None, None) if query.contains("list-type=2") => {
                (200, "", "<ListBucketResult></ListBucketResult>".to_owned())
            }
            ("GET" | "HEAD", None, None) => (404, "", String::new()),
            _ => (405, "", String::new()),
        }
    }
}
