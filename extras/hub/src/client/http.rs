//! [`Http`]: one request and the head of its answer. Only this sends the token.

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

/// A multiple of the limit of silence.
const HEAD: u32 = 4;

const IDLE: usize = 32;

pub(super) struct Http {
    agent: Agent,
    endpoint: Url,
    token: Option<Token>,
    proxies: Proxies,
    was_reached: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
}

impl Http {
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

    pub(super) fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn was_reached(&self) -> &AtomicBool {
        &self.was_reached
    }

    /// Only the Hub gets the token. `range`: the value of the header.
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

/// Hides messages that may contain an address.
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

fn through(error: Error, proxy: &Proxy) -> Error {
    let Some(ErrorKind::Network { host, problem }) = error.other() else { return error };
    let problem = format!("{problem}; the proxy is {}:{}", proxy.host(), proxy.port());
    ErrorKind::Network { host: host.clone(), problem }.into()
}

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

/// Retries do not help.
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

pub(super) struct Answer {
    pub(super) url: Url,
    response: Response<Body>,
    span: Span,
}

impl Answer {
    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(super) fn is_redirect(&self) -> bool {
        matches!(self.status(), 301 | 302 | 303 | 307 | 308)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok().map(str::trim)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    pub(super) fn content_length(&self) -> Option<u64> {
        self.number("content-length")
    }

    /// Never less encrypted.
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

    pub(super) fn bad(&self, problem: impl Into<String>) -> Error {
        ErrorKind::BadAnswer { host: self.url.host(), problem: problem.into() }.into()
    }

    /// A compressed body has another length.
    pub(super) fn check_not_compressed(&self) -> Result<()> {
        match self.header("content-encoding") {
            None | Some("" | "identity") => Ok(()),
            Some(_) => Err(self.bad("it sends compressed bytes, which were not asked for")),
        }
    }

    pub(super) fn into_body(self) -> (Url, Body, Span) {
        (self.url, self.response.into_body(), self.span)
    }
}

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
