//! [`Connector`]: the HTTP client under all stores.
//!
//! It replaces the one of `object_store`:
//!
//! - It bounds bodies that are read at once.
//! - It soon gives up a server that was never reached.
//! - Its TLS uses `ring`, not `aws-lc`, which takes minutes to build.
//! - It follows no redirect of a bucket, since no other host may get the credentials in the
//!   headers.
//! - A request has a time limit only for silence: 16 MiB may take long on a slow line.
//! - It takes proxies from the same variables as downloads.

use std::sync::Arc;
use std::time::Duration;

use object_store::client::{HttpClient, HttpConnector};
use object_store::{ClientConfigKey, ClientOptions, Error};
use reqwest::redirect::{Attempt, Policy};
use rustls_platform_verifier::BuilderVerifierExt;

use super::bounded::Bounded;
use super::reaching::Reaching;
use super::silence::Listening;
use crate::environment::Environment;
use crate::proxy::Proxies;

/// A multiple of the time to connect.
const CONNECTIONS: u32 = 2;

const CONNECT: Duration = Duration::from_secs(5);

const REDIRECTS: usize = 10;

#[derive(Debug)]
pub(super) struct Connector {
    pub(super) follows_redirects: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let connect = duration(options, ClientConfigKey::ConnectTimeout)?.unwrap_or(CONNECT);
        let tls = tls()?;
        let limit = duration(options, ClientConfigKey::ReadTimeout)?;
        let client = Listening {
            receiving: Bounded(self.client(options, tls.clone(), limit)?),
            sending: self.client(options, tls, None)?,
            limit,
        };
        Ok(HttpClient::new(Reaching::new(client, connect.saturating_mul(CONNECTIONS))))
    }
}

impl Connector {
    fn client(
        &self,
        options: &ClientOptions,
        tls: rustls::ClientConfig,
        silence: Option<Duration>,
    ) -> object_store::Result<reqwest::Client> {
        use ClientConfigKey as Key;

        // For another host, reqwest 0.13 drops `Authorization`, but not `x-amz-security-token`.
        let policy = if self.follows_redirects { Policy::custom(redirect) } else { Policy::none() };
        let mut client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(policy)
            // The address that redirects may be signed, and the next host would see it.
            .referer(false)
            .https_only(!flag(options, Key::AllowHttp)?);
        check_supported(options)?;
        if let Some(agent) = options.get_config_value(&Key::UserAgent) {
            client = client.user_agent(agent);
        }
        if let Some(headers) = options.get_default_headers() {
            client = client.default_headers(headers.clone());
        }
        let proxies = proxies(options)?;
        client = client.proxy(reqwest::Proxy::custom(move |url| {
            let proxy = proxies.choose(url.scheme(), url.host_str()?, url.port())?;
            Some(proxy.url.clone())
        }));
        if let Some(limit) = duration(options, Key::Timeout)? {
            client = client.timeout(limit);
        }
        if let Some(limit) = duration(options, Key::ConnectTimeout)? {
            client = client.connect_timeout(limit);
        }
        if let Some(limit) = silence {
            client = client.read_timeout(limit);
        }
        if let Some(limit) = duration(options, Key::PoolIdleTimeout)? {
            client = client.pool_idle_timeout(limit);
        }
        if flag(options, Key::Http2Only)? {
            client = client.http2_prior_knowledge();
        } else if flag(options, Key::Http1Only)? {
            client = client.http1_only();
        }
        client
            .build()
            .map_err(|error| Error::Generic { store: "HTTP client", source: Box::new(error) })
    }
}

fn check_supported(options: &ClientOptions) -> object_store::Result<()> {
    for key in [ClientConfigKey::AllowInvalidCertificates, ClientConfigKey::ProxyCaCertificate] {
        if options.get_config_value(&key).is_some_and(|value| value != "false") {
            return Err(bad(key, "is not supported; add the certificate to the system"));
        }
    }
    Ok(())
}

/// Never from an encrypted connection to a plain one. The client drops credentials when the host
/// changes.
fn redirect(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    if attempt.previous().len() > REDIRECTS {
        return attempt.error("too many redirects");
    }
    let was_encrypted = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
    if was_encrypted && attempt.url().scheme() != "https" {
        return attempt.error("a redirect to an address without encryption");
    }
    attempt.follow()
}

fn proxies(options: &ClientOptions) -> object_store::Result<Proxies> {
    use ClientConfigKey as Key;
    let proxies = match options.get_config_value(&Key::ProxyUrl) {
        Some(address) => {
            let except = options.get_config_value(&Key::ProxyExcludes).unwrap_or_default();
            Proxies::through("proxy_url", &address, &except)
        }
        None => Proxies::of_environment(&Environment::PROCESS),
    };
    proxies.map_err(|error| Error::Generic { store: "HTTP client", source: Box::new(error) })
}

fn tls() -> object_store::Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_platform_verifier());
    let config =
        config.map_err(|error| Error::Generic { store: "TLS", source: Box::new(error) })?;
    Ok(config.with_no_client_auth())
}

fn flag(options: &ClientOptions, key: ClientConfigKey) -> object_store::Result<bool> {
    match options.get_config_value(&key).unwrap_or_default().to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Ok(true),
        "" | "0" | "false" | "off" | "no" | "n" => Ok(false),
        _ => Err(bad(key, "should be true or false")),
    }
}

fn duration(
    options: &ClientOptions,
    key: ClientConfigKey,
) -> object_store::Result<Option<Duration>> {
    let Some(text) = options.get_config_value(&key) else { return Ok(None) };
    match humantime::parse_duration(&text) {
        Ok(duration) => Ok(Some(duration)),
        Err(_) => Err(bad(key, "should be a time such as 30s")),
    }
}

fn bad(key: ClientConfigKey, problem: &str) -> Error {
    let source = format!("the option {} {problem}", key.as_ref()).into();
    Error::Generic { store: "HTTP client", source }
}
