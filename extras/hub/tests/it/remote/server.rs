//! [`Server`]: a web server on the loopback that serves files by ranges, counts what it does, and
//! misbehaves when it is told to.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A request, as the server has seen it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// The first byte that is asked for, and the last one.
    pub(crate) range: Option<(u64, u64)>,
}

/// How the server answers wrongly.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// An error in place of the file.
    Status(u16, &'static str),
    /// The whole file, with the status 200.
    Whole,
    /// Another range than the one that was asked for.
    OtherRange,
    /// So many bytes, and then the connection is closed.
    Cut(usize),
    /// So many bytes, and then nothing more.
    Stall(usize),
    /// Fewer bytes than the header says there are in the range, and the connection stays open.
    Redirect(String),
}

type Misbehave = dyn Fn(usize, &Request) -> Option<Fault> + Send + Sync;

struct File {
    bytes: Vec<u8>,
    tag: String,
}

/// What the server has, does and remembers.
struct State {
    files: Mutex<BTreeMap<String, Arc<File>>>,
    log: Mutex<Vec<Request>>,
    misbehave: Mutex<Arc<Misbehave>>,
    sent: AtomicUsize,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
    has_etags: AtomicBool,
    heeds_conditions: AtomicBool,
    is_over: AtomicBool,
    latency: Mutex<Duration>,
    /// Bytes that the server sends in a second, all connections together; 0 for as many as it can.
    bandwidth: AtomicUsize,
    /// When the line is free for the next bytes.
    free_at: Mutex<Instant>,
}

/// A web server on a port of its own, until it is dropped.
pub(crate) struct Server {
    state: Arc<State>,
    at: SocketAddr,
}

impl Server {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let state = Arc::new(State {
            files: Mutex::default(),
            log: Mutex::default(),
            misbehave: Mutex::new(Arc::new(|_, _| None)),
            sent: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
            has_etags: AtomicBool::new(true),
            heeds_conditions: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            latency: Mutex::new(Duration::ZERO),
            bandwidth: AtomicUsize::new(0),
            free_at: Mutex::new(Instant::now()),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::SeqCst) {
                    break;
                }
                let state = Arc::clone(&shared);
                // A client that goes away is no failure of the server.
                thread::spawn(move || _ = state.serve(stream));
            }
        });
        Self { state, at }
    }

    pub(crate) fn with(self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.put(name, bytes);
        self
    }

    /// Adds or replaces a file.
    pub(crate) fn put(&self, name: &str, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        let tag = format!("\"{:016x}\"", hash(&bytes));
        let mut files = self.state.files.lock().unwrap();
        files.insert(format!("/{name}"), Arc::new(File { bytes, tag }));
    }

    /// The address of a file.
    pub(crate) fn address(&self, name: &str) -> String {
        format!("http://{}/{name}", self.at)
    }

    /// Answers wrongly where the function says so, which gets the number of each request.
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

    /// The requests since the last call.
    pub(crate) fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.log.lock().unwrap())
    }

    /// The bytes of files that were sent since the last call.
    pub(crate) fn take_sent(&self) -> usize {
        self.state.sent.swap(0, Ordering::SeqCst)
    }

    /// The most requests that were under way at once.
    pub(crate) fn most_under_way(&self) -> usize {
        self.state.most_under_way.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.at);
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some(request) = read_request(&mut reader)? {
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
            // Counted down before the answer: once a client has all of it, its next request may
            // come sooner than this thread goes on.
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            self.answer(&mut stream, &request, misbehave(number, &request))?;
        }
        Ok(())
    }

    fn answer(
        &self,
        stream: &mut TcpStream,
        request: &Request,
        fault: Option<Fault>,
    ) -> io::Result<()> {
        let file = self.files.lock().unwrap().get(&request.path).cloned();
        // What follows the answer to a HEAD would be taken for the next answer's beginning.
        let has_body = request.method != "HEAD";
        let mut plain = |status, head: &str, body: &str| {
            let len = body.len();
            let body = if has_body { body } else { "" };
            write!(stream, "HTTP/1.1 {status} Told\r\nContent-Length: {len}\r\n{head}\r\n{body}")
        };
        match &fault {
            Some(Fault::Status(status, body)) => return plain(*status, "", body),
            Some(Fault::Redirect(to)) => {
                return plain(302, &format!("Location: {to}\r\n"), "elsewhere");
            }
            _ => {}
        }
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return plain(405, "", "");
        }
        let Some(file) = file else { return plain(404, "", "no such file") };
        let File { bytes: file, tag } = &*file;
        let condition = request.headers.get("if-match").filter(|condition| *condition != tag);
        if condition.is_some() && self.heeds_conditions.load(Ordering::SeqCst) {
            return plain(412, "", "");
        }
        let len = file.len() as u64;
        // Some clouds always tell it. This one says nothing of use: all files have the same time.
        let mut head = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n".to_owned();
        if self.has_etags.load(Ordering::SeqCst) {
            head += &format!("ETag: {tag}\r\n");
        }
        let mut bytes = &file[..];
        let mut status = "200 OK";
        if let Some((mut first, mut last)) = request.range
            && !matches!(fault, Some(Fault::Whole))
        {
            if first >= len {
                return plain(416, "", "");
            }
            last = last.min(len - 1);
            if matches!(fault, Some(Fault::OtherRange)) {
                (first, last) = (first.saturating_sub(1), last - 1);
            }
            head += &format!("Content-Range: bytes {first}-{last}/{len}\r\n");
            bytes = &file[first as usize..=last as usize];
            status = "206 Partial Content";
        }
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{head}\r\n", bytes.len())?;
        if !has_body {
            return Ok(());
        }
        match fault {
            Some(Fault::Cut(most)) if most < bytes.len() => {
                self.send(stream, &bytes[..most])?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            Some(Fault::Stall(most)) if most < bytes.len() => {
                self.send(stream, &bytes[..most])?;
                thread::sleep(Duration::from_secs(20));
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            _ => self.send(stream, bytes),
        }
    }

    fn send(&self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        // A thread that slept too long may catch up so much.
        const SLACK: Duration = Duration::from_millis(5);
        for piece in bytes.chunks(128 << 10) {
            let bandwidth = self.bandwidth.load(Ordering::SeqCst);
            if bandwidth > 0 {
                let time = Duration::from_secs_f64(piece.len() as f64 / bandwidth as f64);
                let until = {
                    let mut free_at = self.free_at.lock().unwrap();
                    let earliest = Instant::now().checked_sub(SLACK).unwrap_or(*free_at);
                    *free_at = (*free_at).max(earliest) + time;
                    *free_at
                };
                thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            // Counted before it is written: who has read an answer finds it counted.
            self.sent.fetch_add(piece.len(), Ordering::SeqCst);
            stream.write_all(piece)?;
        }
        Ok(())
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let range = headers.get("range").and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    let path = path.split('?').next().unwrap_or_default().to_owned();
    Ok(Some(Request { method, path, headers, range }))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
