//! [`Listening`]: an HTTP client that gives up a silent server.
//!
//! The client below measures silence from a request to its answer, but a part may take longer to be
//! sent. So here silence is measured by the pieces that the connection takes.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use safetensors_core::lock;
use tokio::time::{Instant, timeout_at};

use super::bounded::{Bounded, whole};

/// Bytes given to a connection at once.
const PIECE: usize = 64 << 10;

/// A multiple of the limit: the system may hold some megabytes that the connection took.
const WHILE_SENDING: u32 = 2;

#[derive(Debug)]
pub(super) struct Listening {
    /// For requests without a body. It knows the limit itself.
    pub(super) receiving: Bounded,
    pub(super) sending: reqwest::Client,
    pub(super) limit: Option<Duration>,
}

#[async_trait::async_trait]
impl HttpService for Listening {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.body().content_length() == 0 {
            return self.receiving.call(request).await;
        }
        let progress = Progress::begin();
        let call = self.send(request, progress.clone());
        match self.limit {
            Some(limit) => progress.within(limit.saturating_mul(WHILE_SENDING), call).await,
            None => call.await,
        }
    }
}

impl Listening {
    /// Reads the entire answer. Answers to uploads are short.
    async fn send(
        &self,
        request: HttpRequest,
        progress: Progress,
    ) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let url = reqwest::Url::parse(&head.uri.to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut request = reqwest::Request::new(head.method, url);
        *request.headers_mut() = head.headers;
        *request.body_mut() = Some(match body.as_bytes() {
            // A list of parts, for example. Its length is in no header yet.
            Some(bytes) => bytes.clone().into(),
            None => {
                let pieces = HttpResponseBody::new(body).bytes_stream().map_ok(pieces);
                let pieces = pieces.try_flatten().inspect_ok(move |_| progress.tick());
                reqwest::Body::wrap_stream(pieces)
            }
        });
        let mut answer = self.sending.execute(request).await.map_err(failed)?;
        let status = answer.status();
        let headers = std::mem::take(answer.headers_mut());
        let arriving = answer.bytes_stream().map_err(failed);
        let mut answer = HttpResponse::new(whole(status, arriving).await?.into());
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }
}

fn pieces(bytes: Bytes) -> impl stream::Stream<Item = Result<Bytes, HttpError>> {
    let starts = (0..bytes.len()).step_by(PIECE);
    let piece = move |start: usize| Ok(bytes.slice(start..bytes.len().min(start + PIECE)));
    stream::iter(starts.map(piece))
}

#[derive(Clone, Debug)]
struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    fn begin() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn tick(&self) {
        *lock(&self.0) = Instant::now();
    }

    fn last(&self) -> Instant {
        *lock(&self.0)
    }

    async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let mut call = pin!(call);
        loop {
            let last = self.last();
            // A limit beyond all times is none.
            let Some(end) = last.checked_add(limit) else { return call.await };
            match timeout_at(end, &mut call).await {
                Ok(answer) => return answer,
                Err(_) if self.last() > last => {}
                Err(_) => {
                    let message =
                        format!("the server took no bytes and said nothing for {limit:?}");
                    let error = io::Error::new(io::ErrorKind::TimedOut, message);
                    return Err(HttpError::new(HttpErrorKind::Timeout, error));
                }
            }
        }
    }
}

/// Shows whether a repetition is worthwhile, as stores do for their clients' errors.
fn failed(error: reqwest::Error) -> HttpError {
    use io::ErrorKind as Io;

    let of_system = || {
        let mut source = error.source();
        while let Some(inner) = source {
            if let Some(inner) = inner.downcast_ref::<io::Error>() {
                return Some(inner.kind());
            }
            source = inner.source();
        }
        None
    };
    let kind = match of_system() {
        _ if error.is_timeout() => HttpErrorKind::Timeout,
        _ if error.is_connect() => HttpErrorKind::Connect,
        _ if error.is_decode() => HttpErrorKind::Decode,
        Some(Io::TimedOut) => HttpErrorKind::Timeout,
        Some(Io::ConnectionAborted | Io::ConnectionReset | Io::BrokenPipe | Io::UnexpectedEof) => {
            HttpErrorKind::Interrupted
        }
        // The connection was closed.
        _ if error.is_request() || error.is_body() => HttpErrorKind::Request,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error.without_url())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::{sleep, spawn};

    use object_store::client::HttpConnector;
    use object_store::{ClientOptions, PutPayload};

    use super::*;
    use crate::remote::client::Connector;
    use crate::remote::runtime::run;

    const MIB: usize = 1 << 20;

    /// More than a system buffers.
    const SENT: usize = 64 * MIB;

    const LIMIT: Duration = Duration::from_secs(1);

    fn sent(
        serve: impl FnOnce(&mut BufReader<TcpStream>) + Send + 'static,
    ) -> (Result<Bytes, HttpErrorKind>, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            serve(&mut stream);
        });
        let options = ClientOptions::new().with_allow_http(true).with_timeout_disabled();
        let options = options.with_read_timeout(LIMIT);
        let client = Connector { follows_redirects: false }.connect(&options).unwrap();
        let mut request = HttpRequest::new(PutPayload::from(vec![0; SENT]).into());
        *request.method_mut() = reqwest::Method::PUT;
        *request.uri_mut() = format!("http://{at}/part").parse().unwrap();
        request.headers_mut().insert("content-length", SENT.into());
        let begin = std::time::Instant::now();
        let answer = run(async move {
            let answer = client.execute(request).await?;
            answer.into_body().bytes().await
        });
        (answer.unwrap().map_err(|error| error.kind()), begin.elapsed())
    }

    fn read(stream: &mut impl Read, pieces: usize, pause: Duration) {
        let mut piece = vec![0; MIB];
        for _ in 0..pieces {
            stream.read_exact(&mut piece).unwrap();
            sleep(pause);
        }
    }

    #[test]
    fn a_slow_line_is_not_silence() {
        let (answer, took) = sent(|stream| {
            read(stream, SENT / MIB, Duration::from_millis(50));
            write!(stream.get_mut(), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        });
        assert_eq!(answer.unwrap(), "ok");
        assert!(took > 2 * LIMIT, "{took:?}");
    }

    #[test]
    fn a_server_that_stops_receiving_or_sending_is_abandoned() {
        let check = |pieces: usize, answer: &'static str| {
            let (answer, took) = sent(move |stream| {
                read(stream, pieces, Duration::ZERO);
                write!(stream.get_mut(), "{answer}").unwrap();
                sleep(Duration::from_secs(20));
            });
            assert_eq!(answer.unwrap_err(), HttpErrorKind::Timeout);
            assert!(took >= 2 * LIMIT && took < 6 * LIMIT, "{took:?}");
        };
        // At once, because each mostly waits.
        std::thread::scope(|scope| {
            scope.spawn(|| check(2, ""));
            scope.spawn(|| check(SENT / MIB, ""));
            let half = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no";
            scope.spawn(|| check(SENT / MIB, half));
        });
    }
}
