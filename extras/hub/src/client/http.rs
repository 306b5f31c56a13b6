//! [`Http`]: one request and the head of its answer. The only place that sends the token.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use safetensors_core::framework::Span;
use ureq::http::{Response, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Proxy};

use super::retry::Failure;
use super::url::Url;
use crate::environment::{self, Environment};
use crate::error::{Error, ErrorKind, Result};
use crate::proxy::Proxies;
use crate::token::Token;

/// The head of an answer may take this many times the time of silence.
const HEAD: u32 = 4;

/// The most connections to one host that stay open between requests.
const IDLE: usize = 32;

/// Sends requests to the Hub and to the hosts that it redirects to. It does not follow redirects.
pub(super) struct Http {
    agent: Agent,
    endpoint: Url,
    token: Option<Token>,
    proxies: Proxies,
    /// Whether a server has answered.
    was_reached: AtomicBool,
}

/// How a request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
}

impl Http {
    /// Makes a sender for one Hub, which waits for a connection for `connect_timeout`, and for
    /// bytes for `timeout`. The environment names the proxies, and the certificates that replace
    /// the built-in ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadSetting`] for a proxy that cannot be used, or for bad certificates.
    pub(super) fn new(
        endpoint: Url,
        token: Option<Token>,
        connect_timeout: Duration,
        timeout: Duration,
        environment: &Environment<'_>,
    ) -> Result<Self> {
        let proxies = Proxies::of_environment(environment)?;
        let roots = match environment.certificates() {
            Some(path) => trusted(&path)?,
            None => RootCerts::WebPki,
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Each redirect is looked at, because the token must not follow it to another host.
            .max_redirects(0)
            // Each request gets its proxy. By itself the client would read the environment.
            .proxy(None)
            // A compressed answer has no ranges and no length.
            .accept_encoding("identity")
            .user_agent(concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(connect_timeout))
            .timeout_connect(Some(connect_timeout))
            // A server that sends its head byte by byte is never silent.
            .timeout_recv_response(Some(timeout.saturating_mul(HEAD)))
            .timeout_per_read(Some(timeout))
            .timeout_per_write(Some(timeout))
            .max_idle_connections(2 * IDLE)
            .max_idle_connections_per_host(IDLE)
            .tls_config(TlsConfig::builder().root_certs(roots).build());
        let agent = config.build().new_agent();
        Ok(Self { agent, endpoint, token, proxies, was_reached: AtomicBool::new(false) })
    }

    /// Returns the address of the Hub.
    pub(super) fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// Returns whether there is a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns whether a server has answered since this sender was made.
    pub(super) fn was_reached(&self) -> &AtomicBool {
        &self.was_reached
    }

    /// Sends a request, with the token if it goes to the Hub itself, and reads the head of the
    /// answer. `range` is the value of a `Range` header.
    pub(super) fn send(
        &self,
        method: Method,
        url: &Url,
        range: Option<&str>,
    ) -> Result<Answer, Failure> {
        let uri = url.uri().clone();
        let span = Span::request(|| url.host());
        let request = match method {
            Method::Get => self.agent.get(uri),
            Method::Head => self.agent.head(uri),
        };
        let proxy = url.proxy(&self.proxies).map(|proxy| &proxy.ureq);
        let mut request = request.config().proxy(proxy.cloned()).build();
        if let Some(token) = &self.token
            && url.has_origin_of(&self.endpoint)
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.secret()));
        }
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        let answer = match request.call() {
            Ok(response) => {
                let answer = Answer { url: url.clone(), response, span };
                if method == Method::Get {
                    answer.span.record_bytes(answer.content_length().unwrap_or(0));
                }
                Ok(answer)
            }
            Err(error) => {
                let failure = failed(url, &error);
                Err(failure.map(|error| proxy.into_iter().fold(error, through)))
            }
        };
        if !matches!(answer, Err(Failure::Unreached(_))) {
            self.was_reached.store(true, Ordering::Relaxed);
        }
        answer
    }
}

/// Returns the failure of a request or of a body. The message of an error that may contain an
/// address is not shown.
pub(super) fn failed(url: &Url, error: &ureq::Error) -> Failure {
    if let Some(problem) = untrusted(error) {
        let error = ErrorKind::Network { host: url.host(), problem };
        return Failure::Final(error.into());
    }
    let problem = match error {
        ureq::Error::Timeout(_) => "it does not answer in time".to_owned(),
        ureq::Error::HostNotFound => "the host is not found".to_owned(),
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Protocol(error) => format!("the answer breaks a rule of HTTP: {error}"),
        ureq::Error::Tls(problem) => format!("TLS: {problem}"),
        ureq::Error::Rustls(error) => format!("TLS: {error}"),
        ureq::Error::ConnectProxyFailed(_) => "the proxy refuses the connection".to_owned(),
        ureq::Error::InvalidProxyUrl => "the address of the proxy is malformed".to_owned(),
        ureq::Error::LargeResponseHeader(size, limit) => {
            format!("the answer's header has {size} bytes, over the limit of {limit}")
        }
        _ => "the request failed".to_owned(),
    };
    let network = ErrorKind::Network { host: url.host(), problem };
    if is_unreached(error) { Failure::Unreached(network.into()) } else { Failure::passing(network) }
}

/// Adds the proxy to a failure of the network: it may be the proxy's.
fn through(error: Error, proxy: &Proxy) -> Error {
    let Some(ErrorKind::Network { host, problem }) = error.other() else { return error };
    let problem = format!("{problem}; the proxy is {}:{}", proxy.host(), proxy.port());
    ErrorKind::Network { host: host.clone(), problem }.into()
}

/// Returns whether an error says that no connection to the server came about.
fn is_unreached(error: &ureq::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    use ureq::Timeout::{Connect, Resolve};
    match error {
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::ConnectProxyFailed(_)
        | ureq::Error::Timeout(Resolve | Connect) => true,
        ureq::Error::Io(error) => match error.kind() {
            ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable => true,
            // The name of a host that is not found has no other kind.
            _ => error.to_string().contains("failed to lookup address"),
        },
        _ => false,
    }
}

/// Explains a certificate that is not trusted. It would not be trusted the next time either.
fn untrusted(error: &ureq::Error) -> Option<String> {
    let text = match error {
        ureq::Error::Rustls(error) => error.to_string(),
        // A handshake that fails while bytes are read or written.
        ureq::Error::Io(error) => error.get_ref()?.to_string(),
        _ => return None,
    };
    text.contains("invalid peer certificate")
        .then(|| format!("{text}; if a proxy or a mirror has its own, name them in SSL_CERT_FILE"))
}

/// The head of an answer, and its body, which has not been read yet.
pub(super) struct Answer {
    pub(super) url: Url,
    response: Response<Body>,
    span: Span,
}

impl Answer {
    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Returns whether it sends to another address.
    pub(super) fn is_redirect(&self) -> bool {
        matches!(self.status(), 301 | 302 | 303 | 307 | 308)
    }

    /// Returns a header, if it has text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok().map(str::trim)
    }

    /// Returns a header that is a number.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    /// Returns the length of the body, if the head has it.
    pub(super) fn content_length(&self) -> Option<u64> {
        self.number("content-length")
    }

    /// Returns the address that a redirect sends to. It is never one without encryption if this one
    /// has it.
    pub(super) fn target(&self) -> Result<Url, Failure> {
        let bad = |problem: &str| Failure::passing(self.bad(problem));
        let location =
            self.header("location").ok_or_else(|| bad("a redirect without an address"))?;
        let target = self.url.join(location).ok_or_else(|| bad("a redirect to no address"))?;
        if self.url.is_encrypted() && !target.is_encrypted() {
            Err(Failure::Final(self.bad("a redirect to a host without encryption")))
        } else {
            Ok(target)
        }
    }

    /// Returns the error of an answer that breaks a rule.
    pub(super) fn bad(&self, problem: impl Into<String>) -> Error {
        ErrorKind::BadAnswer { host: self.url.host(), problem: problem.into() }.into()
    }

    /// Fails for a compressed body: its length and its ranges do not match the file's.
    pub(super) fn check_not_compressed(&self) -> Result<()> {
        match self.header("content-encoding") {
            None | Some("" | "identity") => Ok(()),
            Some(_) => Err(self.bad("it sends compressed bytes, which were not asked for")),
        }
    }

    /// Returns the body, to be read, and the span that ends when it has been read.
    pub(super) fn into_body(self) -> (Url, Body, Span) {
        (self.url, self.response.into_body(), self.span)
    }
}

/// Returns the certificates in a PEM file.
fn trusted(path: &Path) -> Result<RootCerts> {
    let pem = environment::read(path)?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        let problem = format!("{} has no certificate", path.display());
        return Err(ErrorKind::BadSetting { setting: "SSL_CERT_FILE", problem }.into());
    }
    Ok(RootCerts::from(certificates))
}
