//! An honest server of the Hub on loopback, for tests: the Hub itself and its CDN, which are two
//! origins. It answers as the Hub does, counts requests and bytes, and has faults on demand.
//!
//! A test fails if a token reaches the CDN.
#![allow(dead_code, unreachable_pub, reason = "several tests share it, and none uses all of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cdn;
pub mod http;
mod hub;
pub mod repo;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use http::{Answer, Request};
use repo::Repo;

/// The token that may read private and gated repositories.
pub const TOKEN: &str = "hf_the_right_token";

/// A running server.
pub struct Server {
    /// The address of the Hub.
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

/// Shared by both origins.
struct State {
    repos: BTreeMap<String, Repo>,
    /// The address of the CDN.
    cdn: String,
    /// The signatures of addresses at the CDN, and how many requests each is still good for.
    signatures: HashMap<String, usize>,
    /// How many requests a signature is good for.
    uses: usize,
    faults: Vec<Fault>,
    /// A commit that `main` of each repository leads to after the next listing.
    next_commit: Option<String>,
    /// Whether the Hub sends the bytes of all files itself, without a redirect.
    is_direct: bool,
    /// The bytes that each connection sends in a second.
    rate: Option<usize>,
    /// The number of requests so far.
    requests: usize,
    log: Vec<Seen>,
}

/// One of the two origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Hub,
    Cdn,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct Seen {
    number: usize,
    pub origin: Origin,
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
    pub port: u16,
    pub status: u16,
    /// The bytes of the body that were sent.
    pub bytes: usize,
}

/// A fault: its effect, the affected requests, and how often.
#[derive(Clone, Debug)]
pub struct Fault {
    pub origin: Origin,
    /// `GET` or `HEAD`; empty for both.
    pub method: &'static str,
    /// A part of the path; empty for all.
    pub path: String,
    pub times: usize,
    pub kind: Kind,
}

/// The effect of a fault.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Answers with a status and headers instead of the file.
    Status(u16, Vec<(&'static str, String)>),
    /// Answers with this text instead of the body.
    Body(String),
    /// Ignores the range, and sends the whole file.
    NoRange,
    /// Sends another range, and its header matches.
    OtherRange,
    /// Sends another range, and says that it is the right one.
    LyingRange,
    /// Changes a byte of the body.
    WrongByte,
    /// The body has this length instead of the real one.
    Length(usize),
    /// The body has this many bytes more, and its head has no length.
    Long(usize),
    /// The body ends too early, but its head hides that.
    Short(usize),
    /// The connection breaks after this many bytes.
    Cut(usize),
    /// Nothing more comes after this many bytes, for this long.
    Stall(usize, Duration),
    /// Sends the body slowly: waits this long before the answer.
    Slow(Duration),
    /// Waits until this many requests have this fault.
    Together(usize, Arc<AtomicUsize>),
}

impl Server {
    /// Starts a server with these repositories.
    pub fn start<'a>(repos: impl IntoIterator<Item = (&'a str, Repo)>) -> Self {
        let state = Arc::new(Mutex::new(State {
            repos: repos.into_iter().map(|(name, repo)| (name.to_owned(), repo)).collect(),
            cdn: String::new(),
            signatures: HashMap::new(),
            uses: usize::MAX,
            faults: Vec::new(),
            next_commit: None,
            is_direct: false,
            rate: None,
            requests: 0,
            log: Vec::new(),
        }));
        let serve = |origin, answer: fn(&mut State, &Request) -> Answer| {
            let state = state.clone();
            let address = http::serve(move |request| {
                let (answer, fault, number, rate) = {
                    let mut state = state.lock().unwrap();
                    let fault = state.fault(origin, request);
                    let answer = faulty(&mut state, request, answer, fault.clone());
                    state.requests += 1;
                    let seen = Seen::new(state.requests, origin, request, &answer);
                    state.log.push(seen);
                    (answer, fault, state.requests, state.rate)
                };
                fault.iter().for_each(Kind::wait);
                let state = state.clone();
                let begun = Instant::now();
                let mut due = Duration::ZERO;
                let sent = move |bytes: usize| {
                    if let Some(rate) = rate {
                        due += Duration::from_secs_f64(bytes as f64 / rate as f64);
                        std::thread::sleep(due.saturating_sub(begun.elapsed()));
                    }
                    let log = &mut state.lock().unwrap().log;
                    // The log may have been cleared since.
                    if let Some(seen) = log.iter_mut().find(|seen| seen.number == number) {
                        seen.bytes += bytes;
                    }
                };
                (answer, Box::new(sent) as http::Sent)
            });
            format!("http://{address}")
        };
        let endpoint = serve(Origin::Hub, hub::answer);
        let cdn = serve(Origin::Cdn, cdn::answer);
        state.lock().unwrap().cdn = cdn;
        Self { endpoint, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Adds a fault to the requests of an origin with paths that contain a text.
    pub fn fault(&self, origin: Origin, path: &str, times: usize, kind: Kind) {
        self.fault_of("", origin, path, times, kind);
    }

    /// Adds a fault to the requests with a method.
    pub fn fault_of(
        &self,
        method: &'static str,
        origin: Origin,
        path: &str,
        times: usize,
        kind: Kind,
    ) {
        let path = path.to_owned();
        self.state().faults.push(Fault { origin, method, path, times, kind });
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// From now on a signed address is good for this many requests.
    pub fn expire_after(&self, uses: usize) {
        self.state().uses = uses;
    }

    /// `main` leads to this commit after the next listing.
    pub fn change_after_listing(&self, commit: &str) {
        self.state().next_commit = Some(commit.to_owned());
    }

    /// From now on the Hub sends the bytes of all files itself, as some mirrors do.
    pub fn answer_directly(&self) {
        self.state().is_direct = true;
    }

    /// From now on each connection sends this many bytes in a second.
    pub fn limit_connections(&self, rate: usize) {
        self.state().rate = Some(rate);
    }

    /// Replaces a repository.
    pub fn set(&self, name: &str, repo: Repo) {
        self.state().repos.insert(name.to_owned(), repo);
    }

    /// Returns the commit of a revision.
    pub fn commit(&self, repo: &str, revision: &str) -> String {
        self.state().repos[repo].resolve(revision).unwrap().to_owned()
    }

    /// Returns the requests so far.
    pub fn log(&self) -> Vec<Seen> {
        self.state().log.clone()
    }

    /// Forgets the requests so far.
    pub fn clear_log(&self) {
        self.state().log.clear();
    }

    /// Returns the bytes of bodies that an origin has sent.
    pub fn bytes(&self, origin: Origin) -> usize {
        self.log().iter().filter(|seen| seen.origin == origin).map(|seen| seen.bytes).sum()
    }

    /// Returns the number of requests with this method and this text in their path.
    pub fn count(&self, origin: Origin, method: &str, path: &str) -> usize {
        let is_meant = |seen: &&Seen| {
            seen.origin == origin && seen.method == method && seen.path.contains(path)
        };
        self.log().iter().filter(is_meant).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for seen in self.log() {
            let is_leak = seen.origin == Origin::Cdn && seen.authorization.is_some();
            assert!(!is_leak, "a token reached the CDN: {seen:?}");
        }
    }
}

impl Kind {
    fn wait(&self) {
        match self {
            Self::Slow(time) => std::thread::sleep(*time),
            Self::Together(expected, arrived) => {
                arrived.fetch_add(1, Ordering::SeqCst);
                let begun = Instant::now();
                while arrived.load(Ordering::SeqCst) < *expected {
                    assert!(begun.elapsed() < Duration::from_secs(20), "too few requests at once");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            _ => {}
        }
    }
}

impl Seen {
    fn new(number: usize, origin: Origin, request: &Request, answer: &Answer) -> Self {
        Self {
            number,
            origin,
            method: request.method.clone(),
            path: request.path.clone(),
            range: request.header("range").map(str::to_owned),
            authorization: request.header("authorization").map(str::to_owned),
            port: request.port,
            status: answer.status,
            bytes: 0,
        }
    }
}

impl State {
    /// Returns the fault for a request, if there is one.
    fn fault(&mut self, origin: Origin, request: &Request) -> Option<Kind> {
        let fault = self.faults.iter_mut().find(|fault| {
            fault.times > 0
                && fault.origin == origin
                && request.method.starts_with(fault.method)
                && request.path.contains(&fault.path)
        })?;
        fault.times -= 1;
        Some(fault.kind.clone())
    }
}

/// Returns the answer to a request, spoilt by a fault.
fn faulty(
    state: &mut State,
    request: &Request,
    answer: fn(&mut State, &Request) -> Answer,
    fault: Option<Kind>,
) -> Answer {
    use http::End;
    let mut changed = request.clone();
    match &fault {
        Some(Kind::NoRange) => changed.forget_range(),
        Some(Kind::OtherRange | Kind::LyingRange) => changed.shift_range(),
        Some(Kind::Status(status, headers)) => {
            let headers = headers.clone();
            return Answer { headers, ..Answer::new(*status).body("an error") };
        }
        Some(Kind::Body(text)) => return Answer::new(200).body(text.as_str()),
        _ => {}
    }
    let mut answer = answer(state, &changed);
    match fault {
        Some(Kind::LyingRange) => {
            let range = request.header("range").unwrap_or_default().replace("bytes=", "bytes ");
            for (name, value) in &mut answer.headers {
                if *name == "Content-Range" {
                    let total = value.rsplit('/').next().unwrap().to_owned();
                    *value = format!("{range}/{total}");
                }
            }
        }
        Some(Kind::WrongByte) => {
            let middle = answer.body.len() / 2;
            if let Some(byte) = answer.body.get_mut(middle) {
                *byte ^= 1;
            }
        }
        Some(Kind::Length(len)) => answer.body.resize(len, 0),
        Some(Kind::Long(more)) => {
            answer.body.extend(vec![0; more]);
            answer.end = End::Close;
        }
        Some(Kind::Short(less)) => {
            let len = answer.body.len();
            answer = answer.header("Content-Length", len);
            answer.end = End::Short(less);
        }
        Some(Kind::Cut(len)) => answer.end = End::Cut(len),
        Some(Kind::Stall(len, time)) => answer.end = End::Stall(len, time),
        _ => {}
    }
    answer
}
