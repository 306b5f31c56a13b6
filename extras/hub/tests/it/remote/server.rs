//! [`Server`]: a web server on the loopback that serves files by ranges, counts its work, and
//! misbehaves on request.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::http::{self, Answer, End};

pub(crate) use crate::server::http::Request;

/// How the server answers wrongly.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// An error instead of the file.
    Status(u16, &'static str),
    /// The whole file, with the status 200.
    Whole,
    /// Another range than the one that was asked for.
    OtherRange,
    /// The connection is closed after this many bytes.
    Cut(usize),
    /// Nothing more comes after this many bytes.
    Stall(usize),
    Redirect(String),
}

type Misbehave = dyn Fn(usize, &Request) -> Option<Fault> + Send + Sync;

struct File {
    bytes: Vec<u8>,
    tag: String,
}

/// The files, settings and records of the server.
struct State {
    files: Mutex<BTreeMap<String, Arc<File>>>,
    log: Mutex<Vec<Request>>,
    misbehave: Mutex<Arc<Misbehave>>,
    sent: AtomicUsize,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
    has_etags: AtomicBool,
    heeds_conditions: AtomicBool,
    latency: Mutex<Duration>,
    /// Bytes that the server sends in a second, all connections together; 0 for no limit.
    bandwidth: AtomicUsize,
    /// When the line is free for the next bytes.
    free_at: Mutex<Instant>,
}

/// A web server on its own port; its files are gone once it is dropped.
pub(crate) struct Server {
    state: Arc<State>,
    endpoint: String,
}

impl Server {
    pub(crate) fn new() -> Self {
        let state = Arc::new(State {
            files: Mutex::default(),
            log: Mutex::default(),
            misbehave: Mutex::new(Arc::new(|_, _| None)),
            sent: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
            has_etags: AtomicBool::new(true),
            heeds_conditions: AtomicBool::new(true),
            latency: Mutex::new(Duration::ZERO),
            bandwidth: AtomicUsize::new(0),
            free_at: Mutex::new(Instant::now()),
        });
        let shared = Arc::clone(&state);
        let at = http::serve(move |request| {
            let state = Arc::clone(&shared);
            (shared.answer(request), Box::new(move |len| state.count(len)) as http::Sent)
        });
        Self { state, endpoint: format!("http://{at}") }
    }

    pub(crate) fn with(self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.put(name, bytes);
        self
    }

    /// Adds or replaces a file.
    pub(crate) fn put(&self, name: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let tag = format!("\"{:016x}\"", hasher.finish());
        let mut files = self.state.files.lock().unwrap();
        files.insert(format!("/{name}"), Arc::new(File { bytes, tag }));
    }

    /// Returns the address of a file.
    pub(crate) fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.endpoint)
    }

    /// Answers wrongly if the function returns a fault; it gets the number of each request.
    pub(crate) fn misbehave(
        &self,
        how: impl Fn(usize, &Request) -> Option<Fault> + Send + Sync + 'static,
    ) {
        *self.state.misbehave.lock().unwrap() = Arc::new(how);
    }

    /// Sends no ETags.
    pub(crate) fn without_etags(&self) {
        self.state.has_etags.store(false, Ordering::SeqCst);
    }

    /// Ignores `If-Match`.
    pub(crate) fn ignore_conditions(&self) {
        self.state.heeds_conditions.store(false, Ordering::SeqCst);
    }

    /// Waits before each answer, and sends at most this many bytes in a second.
    pub(crate) fn slow_down(&self, latency: Duration, bandwidth: usize) {
        *self.state.latency.lock().unwrap() = latency;
        self.state.bandwidth.store(bandwidth, Ordering::SeqCst);
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.log.lock().unwrap())
    }

    /// Returns the bytes of files that were sent since the last call.
    pub(crate) fn take_sent(&self) -> usize {
        self.state.sent.swap(0, Ordering::SeqCst)
    }

    /// Returns the most requests that were under way at once.
    pub(crate) fn most_under_way(&self) -> usize {
        self.state.most_under_way.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its thread lives as long as the process, and files may be large.
        self.state.files.lock().unwrap().clear();
    }
}

impl State {
    fn answer(&self, request: &Request) -> Answer {
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(under_way, Ordering::SeqCst);
        let number = {
            let mut log = self.log.lock().unwrap();
            log.push(request.clone());
            log.len() - 1
        };
        // The lock is given back before the wait, so that requests wait side by side.
        let latency = *self.latency.lock().unwrap();
        thread::sleep(latency);
        let misbehave = Arc::clone(&self.misbehave.lock().unwrap());
        // Counted down before the answer: once a client has all of it, its next request may come
        // sooner than this thread goes on.
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.answer_with(request, misbehave(number, request))
    }

    fn answer_with(&self, request: &Request, fault: Option<Fault>) -> Answer {
        match &fault {
            Some(Fault::Status(status, body)) => return Answer::new(*status).body(*body),
            Some(Fault::Redirect(to)) => return Answer::new(302).header("Location", to),
            _ => {}
        }
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return Answer::new(405);
        }
        let Some(file) = self.files.lock().unwrap().get(&request.path).cloned() else {
            return Answer::new(404).body("no such file");
        };
        let File { bytes, tag } = &*file;
        let has_other_tag = request.header("if-match").is_some_and(|condition| condition != tag);
        if has_other_tag && self.heeds_conditions.load(Ordering::SeqCst) {
            return Answer::new(412);
        }
        let mut answer = match request.range() {
            Some((mut first, mut last)) if !matches!(fault, Some(Fault::Whole)) => {
                let len = bytes.len() as u64;
                if first >= len {
                    return Answer::new(416);
                }
                last = last.min(len - 1);
                if matches!(fault, Some(Fault::OtherRange)) {
                    (first, last) = (first.saturating_sub(1), last - 1);
                }
                Answer::new(206)
                    .header("Content-Range", format!("bytes {first}-{last}/{len}"))
                    .body(&bytes[first as usize..=last as usize])
            }
            _ => Answer::new(200).body(bytes.as_slice()),
        };
        // Some clouds always send it. This one is useless: all files have the same time.
        answer = answer.header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT");
        if self.has_etags.load(Ordering::SeqCst) {
            answer = answer.header("ETag", tag);
        }
        match fault {
            Some(Fault::Cut(most)) if most < answer.body.len() => answer.end = End::Cut(most),
            Some(Fault::Stall(most)) if most < answer.body.len() => {
                answer.end = End::Stall(most, Duration::from_secs(20));
            }
            _ => {}
        }
        answer
    }

    /// Counts a piece, and waits until the line is free for it.
    fn count(&self, len: usize) {
        // A thread that slept too long may catch up so much.
        const SLACK: Duration = Duration::from_millis(5);
        let bandwidth = self.bandwidth.load(Ordering::SeqCst);
        if bandwidth > 0 {
            let time = Duration::from_secs_f64(len as f64 / bandwidth as f64);
            let until = {
                let mut free_at = self.free_at.lock().unwrap();
                let earliest = Instant::now().checked_sub(SLACK).unwrap_or(*free_at);
                *free_at = (*free_at).max(earliest) + time;
                *free_at
            };
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        self.sent.fetch_add(len, Ordering::SeqCst);
    }
}
