//! [`Bounded`]: an HTTP client that limits answers which are read at once.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};
use reqwest::StatusCode;

/// Of an error's body. The rest is not read.
const ERROR: usize = 64 << 10;

/// Bytes of an answer without a range, such as an index: core's default limit.
const WHOLE: usize = 100_000_000;

/// Bytes of all pages of a listing: some 300,000 objects.
pub(super) const LISTING: usize = 100_000_000;

tokio::task_local! {
    static LEFT: Cell<usize>;
}

pub(super) async fn together<T>(most: usize, request: impl Future<Output = T>) -> T {
    LEFT.scope(Cell::new(most), request).await
}

/// `object_store` reads errors, listings and small files at once, so a hostile server could fill
/// the memory.
#[derive(Debug)]
pub(super) struct Bounded(pub(super) reqwest::Client);

#[async_trait::async_trait]
impl HttpService for Bounded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let has_range = request.headers().contains_key("range");
        let (head, body) = self.0.call(request).await?.into_parts();
        let body = if has_range && head.status.is_success() {
            // It is passed on as it arrives, and compared with the range.
            body
        } else {
            whole(head.status, body.bytes_stream()).await?.into()
        };
        Ok(HttpResponse::from_parts(head, body))
    }
}

pub(super) async fn whole(
    status: StatusCode,
    arriving: impl Stream<Item = Result<Bytes, HttpError>>,
) -> Result<Bytes, HttpError> {
    if !status.is_success() {
        return start(arriving, ERROR, true).await;
    }
    let most = LEFT.try_with(Cell::get).unwrap_or(WHOLE);
    let whole = start(arriving, most, false).await?;
    let _ = LEFT.try_with(|left| left.set(most - whole.len()));
    Ok(whole)
}

/// Returns at most `most` bytes. More are an error, unless it `may_be_cut`.
async fn start(
    arriving: impl Stream<Item = Result<Bytes, HttpError>>,
    most: usize,
    may_be_cut: bool,
) -> Result<Bytes, HttpError> {
    let mut start = Vec::new();
    let mut arriving = pin!(arriving);
    while let Some(bytes) = arriving.next().await {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(_) if may_be_cut => break,
            Err(error) => return Err(error),
        };
        if bytes.len() > most - start.len() {
            if may_be_cut {
                start.extend_from_slice(&bytes[..most - start.len()]);
                break;
            }
            let problem = format!("the answer has more than {most} bytes, the rest of its limit");
            return Err(HttpError::new(HttpErrorKind::Decode, std::io::Error::other(problem)));
        }
        start.extend_from_slice(&bytes);
    }
    Ok(start.into())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{JoinHandle, spawn};

    use object_store::client::HttpConnector;

    use super::*;
    use crate::remote::runtime::run;

    fn endless(status: u16) -> (SocketAddr, JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let serve = move || {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 4096]).unwrap();
            write!(stream, "HTTP/1.1 {status} -\r\nConnection: close\r\n\r\n").unwrap();
            let piece = vec![b'x'; 1 << 20];
            (0..1024).take_while(|_| stream.write_all(&piece).is_ok()).count() * piece.len()
        };
        (at, spawn(serve))
    }

    fn body_len(at: SocketAddr) -> Result<usize, HttpError> {
        let client = crate::remote::client::Connector { follows_redirects: false };
        let options = object_store::ClientOptions::new().with_allow_http(true);
        let client = client.connect(&options).unwrap();
        let mut request = HttpRequest::new(Bytes::new().into());
        *request.uri_mut() = format!("http://{at}/").parse().unwrap();
        run(async move {
            let answer = client.execute(request).await?;
            Ok(answer.into_body().bytes().await?.len())
        })
        .unwrap()
    }

    fn endless_listing() -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, pages) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&pages);
        spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut stream = std::io::BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).unwrap_or(0) > 2 {
                    line.clear();
                }
                let page = counted.fetch_add(1, Ordering::SeqCst);
                let object = |number| {
                    format!(
                        "<Contents><Key>a/{page}-{number}</Key><Size>1</Size>\
                         <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                    )
                };
                let body = format!(
                    "<ListBucketResult><IsTruncated>true</IsTruncated>\
                     <NextContinuationToken>{page}</NextContinuationToken>{}</ListBucketResult>",
                    (0..100).map(object).collect::<String>()
                );
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length";
                let _ = write!(stream.get_mut(), "{head}: {}\r\n\r\n{body}", body.len());
            }
        });
        (at, pages)
    }

    #[test]
    fn an_endless_listing_ends_in_an_error() {
        let (at, pages) = endless_listing();
        let options = crate::remote::RemoteOptions::new()
            .option("endpoint", format!("http://{at}"))
            .option("allow_http", "true")
            .option("skip_signature", "true")
            .retries(0);
        let place = crate::remote::place::RemotePlace::new("s3://bucket/a", &options).unwrap();
        let service = place.service;
        let listed = run(together(200_000, async move {
            service.store.list_with_delimiter(Some(&"a".into())).await.map_err(|e| e.to_string())
        }));
        let error = listed.unwrap().unwrap_err();
        assert!(error.contains("bytes, the rest of its limit"), "{error}");
        // Each has some 11 kB.
        let pages = pages.load(Ordering::SeqCst);
        assert!((5..40).contains(&pages), "{pages}");
    }

    #[test]
    fn an_endless_answer_takes_bounded_memory() {
        let (at, sent) = endless(403);
        assert_eq!(body_len(at).unwrap(), ERROR);
        assert!(sent.join().unwrap() < 64 << 20);
        let (at, sent) = endless(200);
        let error = body_len(at).unwrap_err();
        assert!(format!("{error:?}").contains("more than 100000000 bytes"), "{error:?}");
        assert!(sent.join().unwrap() < 512 << 20);
    }
}
