//! [`Reaching`]: an HTTP client that soon gives up a server which was never reached.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};
use safetensors_core::lock;

/// `object_store` repeats requests for minutes if no server is reached: its name may be misspelt,
/// or it may be off. Once a server has answered, its connection may be interrupted for a while.
#[derive(Debug)]
pub(super) struct Reaching<C> {
    client: C,
    /// For all attempts together.
    patience: Duration,
    server: Mutex<Server>,
}

#[derive(Clone, Copy, Debug)]
enum Server {
    Unknown,
    /// The last request failed at `last`.
    Silent {
        since: Instant,
        last: Instant,
    },
    Reached,
}

impl<C> Reaching<C> {
    pub(super) fn new(client: C, patience: Duration) -> Self {
        Self { client, patience, server: Mutex::new(Server::Unknown) }
    }
}

#[async_trait::async_trait]
impl<C: HttpService> HttpService for Reaching<C> {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let begin = Instant::now();
        let answer = self.client.call(request).await;
        let mut server = lock(&self.server);
        match answer {
            Err(error) if is_unreached(&error) => {
                let since = match *server {
                    Server::Reached => return Err(error),
                    // The attempts of a request follow each other sooner.
                    Server::Silent { last, .. } if last + 2 * self.patience < begin => begin,
                    Server::Silent { since, .. } => since,
                    Server::Unknown => begin,
                };
                if since.elapsed() < self.patience {
                    *server = Server::Silent { since, last: Instant::now() };
                    return Err(error);
                }
                // The next request has as much time as this one.
                *server = Server::Unknown;
                // Errors of this kind are not repeated.
                Err(HttpError::new(HttpErrorKind::Unknown, error))
            }
            answer => {
                *server = Server::Reached;
                answer
            }
        }
    }
}

fn is_unreached(error: &HttpError) -> bool {
    // One that takes too long counts as a timeout.
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<reqwest::Error>());
    error.kind() == HttpErrorKind::Connect || source.is_some_and(reqwest::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::sleep;

    use bytes::Bytes;
    use object_store::client::HttpClient;

    use super::*;
    use crate::remote::runtime::run;

    const PATIENCE: Duration = Duration::from_millis(200);

    #[derive(Clone, Debug)]
    struct FakeService(Arc<Mutex<Option<HttpErrorKind>>>);

    #[async_trait::async_trait]
    impl HttpService for FakeService {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            match *self.0.lock().unwrap() {
                Some(kind) => Err(HttpError::new(kind, std::io::Error::other("fake"))),
                None => Ok(HttpResponse::new(Bytes::new().into())),
            }
        }
    }

    fn ask(client: &HttpClient) -> Option<HttpErrorKind> {
        let client = client.clone();
        let request = HttpRequest::new(Bytes::new().into());
        run(async move { client.execute(request).await.err().map(|error| error.kind()) }).unwrap()
    }

    const UNREACHED: Option<HttpErrorKind> = Some(HttpErrorKind::Connect);

    /// Makes a client of a server, and a function that sets how the server answers.
    fn client() -> (HttpClient, impl Fn(Option<HttpErrorKind>)) {
        let service = FakeService(Arc::default());
        let client = HttpClient::new(Reaching::new(service.clone(), PATIENCE));
        (client, move |kind| *service.0.lock().unwrap() = kind)
    }

    #[test]
    fn only_a_server_that_was_never_reached_is_abandoned() {
        let (client, answer) = client();
        answer(UNREACHED);
        for _ in 0..2 {
            assert_eq!(ask(&client), UNREACHED);
            sleep(PATIENCE);
            assert_eq!(ask(&client), Some(HttpErrorKind::Unknown));
        }
        answer(None);
        assert_eq!(ask(&client), None);
        answer(UNREACHED);
        for _ in 0..3 {
            assert_eq!(ask(&client), UNREACHED);
            sleep(PATIENCE);
        }
    }

    #[test]
    fn a_request_long_after_one_that_failed_has_the_whole_time_again() {
        let (client, answer) = client();
        answer(UNREACHED);
        assert_eq!(ask(&client), UNREACHED);
        sleep(3 * PATIENCE);
        assert_eq!(ask(&client), UNREACHED);
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_answer() {
        let (client, answer) = client();
        for kind in [UNREACHED, Some(HttpErrorKind::Interrupted), UNREACHED, UNREACHED] {
            answer(kind);
            assert_eq!(ask(&client), kind);
            sleep(PATIENCE / 2);
        }
    }
}
