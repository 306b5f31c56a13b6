//! HTTP/1.1 on loopback: connections that stay open, one thread each.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A request, as it arrived.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// The path, decoded, without the query.
    pub path: String,
    pub query: String,
    /// By their names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// The port of the client, which tells connections apart.
    pub port: u16,
}

impl Request {
    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the first byte that is asked for, and the last one.
    pub fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    /// Has the whole file be sent.
    pub fn forget_range(&mut self) {
        self.headers.remove("range");
    }

    /// Has a range of the same length be sent that begins one byte earlier or later.
    pub fn shift_range(&mut self) {
        if let Some((start, end)) = self.range() {
            let range = match start {
                0 => format!("bytes=1-{}", end + 1),
                _ => format!("bytes={}-{}", start - 1, end - 1),
            };
            self.headers.insert("range".into(), range);
        }
    }
}

/// An answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    pub end: End,
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After all bytes.
    Whole,
    /// After this many bytes of the body, the connection is closed.
    Cut(usize),
    /// After this many bytes of the body nothing more comes for this long; then the connection is
    /// closed.
    Stall(usize, Duration),
    /// The head has no length: the body ends with the connection.
    Close,
    /// The body has this many bytes less than the head says.
    Short(usize),
}

impl Answer {
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), end: End::Whole }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    #[must_use]
    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }
}

/// Starts a server. `handle` answers each request, and returns a function for each piece of the
/// body.
pub fn serve(handle: impl Fn(&Request) -> (Answer, Sent) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            thread::spawn(move || converse(stream, &*handle));
        }
    });
    address
}

/// Gets the length of each piece of a body before it is sent, so that every piece a client has read
/// is counted. It may wait.
pub type Sent = Box<dyn FnMut(usize)>;

fn converse(stream: TcpStream, handle: &dyn Fn(&Request) -> (Answer, Sent)) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let port = stream.peer_addr().ok()?.port();
    let mut input = BufReader::new(stream.try_clone().ok()?);
    let mut output = stream;
    loop {
        let request = Request { port, ..read(&mut input)? };
        let (answer, mut sent) = handle(&request);
        let is_head = request.method == "HEAD";
        let mut head = format!("HTTP/1.1 {} -\r\n", answer.status);
        if !matches!(answer.end, End::Close)
            && !answer.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        {
            head += &format!("Content-Length: {}\r\n", answer.body.len());
        }
        for (name, value) in &answer.headers {
            head += &format!("{name}: {value}\r\n");
        }
        output.write_all((head + "\r\n").as_bytes()).ok()?;
        let body = if is_head { &[][..] } else { &answer.body };
        let (len, goes_on) = match answer.end {
            End::Whole => (body.len(), true),
            End::Close => (body.len(), false),
            End::Cut(len) | End::Stall(len, _) => (len.min(body.len()), false),
            End::Short(less) => (body.len().saturating_sub(less), false),
        };
        // In pieces, so that a client that goes away is noticed.
        for piece in body[..len].chunks(64 << 10) {
            sent(piece.len());
            output.write_all(piece).ok()?;
        }
        if let End::Stall(_, time) = answer.end {
            thread::sleep(time);
        }
        if !goes_on {
            return None;
        }
    }
}

fn read(input: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let mut words = line.split_whitespace();
    let method = words.next()?.to_owned();
    let target = words.next()?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method,
        path: decoded(path),
        query: query.to_owned(),
        headers: HashMap::new(),
        body: Vec::new(),
        port: 0,
    };
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|len| *len > 0)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None => break,
        }
    }
    let len = request.header("content-length").map_or(0, |len| len.parse().unwrap());
    request.body.resize(len, 0);
    input.read_exact(&mut request.body).ok()?;
    Some(request)
}

/// Decodes `%2F` and the like.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
