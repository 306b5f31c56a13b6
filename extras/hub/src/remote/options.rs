//! [`RemoteOptions`]: how to connect to a store.

use std::time::Duration;

use super::error::Secrets;
use object_store::{BackoffConfig, RetryConfig};

/// How to connect to a remote store.
///
/// ```
/// use safetensors_hub::remote::RemoteOptions;
///
/// let options = RemoteOptions::new()
///     .option("region", "eu-central-1")
///     .option("endpoint", "http://127.0.0.1:9000")
///     .option("allow_http", "true")
///     .retries(3);
/// ```
#[derive(Clone)]
pub struct RemoteOptions {
    pairs: Vec<(String, String)>,
    pub(super) retries: usize,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self { pairs: Vec::new(), retries: 8 }
    }
}

impl std::fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.pairs.iter().map(|(name, _)| name).collect();
        f.debug_struct("RemoteOptions")
            .field("options", &names)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

impl RemoteOptions {
    /// Returns options with the environment's settings and credentials, and eight retries.
    ///
    /// The variables are named as in `object_store` and the vendors' tools: `AWS_`, `GOOGLE_` or
    /// `AZURE_` and more, and for `hf` as in Python's `huggingface_hub`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an option of `object_store` or its HTTP client: `region`, `endpoint`, `access_key_id`,
    /// `skip_signature`, `connect_timeout`. It overrides the environment. A store ignores unknown
    /// names.
    ///
    /// - `connect_timeout` (`5s`): the time for a connection. A server that was never reached is
    ///   given up after twice this time, for any number of retries.
    /// - `read_timeout` (`60s`): the time for which a server may be silent; twice that while
    ///   bytes are sent.
    /// - `authorization`, for `http` and `https`: the value of that header, such as `Bearer ...`.
    /// - `endpoint` and `token`, for `hf`.
    ///
    /// No other host gets these credentials in a redirect.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.pairs.push((name.into(), value.into()));
        self
    }

    /// Sets the number of retries after a passing failure, such as status 5xx or 429, or a broken
    /// connection: 8 by default. Pauses grow from 0.1 to 10 seconds. A request older than 3 minutes
    /// is not repeated, because its signature may have expired.
    #[must_use]
    pub fn retries(mut self, retries: usize) -> Self {
        self.retries = retries;
        self
    }

    /// Returns all options, the environment's first. Only variables with the prefix count.
    pub(super) fn pairs(&self, prefix: Option<&str>) -> Vec<(String, String)> {
        let of_environment = prefix.into_iter().flat_map(|prefix| {
            let variables = std::env::vars_os();
            let texts = variables.filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            });
            texts.filter(move |(name, _)| name.starts_with(prefix))
        });
        of_environment.chain(self.pairs.iter().cloned()).collect()
    }

    pub(super) fn secrets(pairs: &[(String, String)]) -> Secrets {
        Secrets::among(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }

    pub(super) fn retry_config(&self) -> RetryConfig {
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
            base: 2.0,
        };
        RetryConfig {
            backoff,
            max_retries: self.retries,
            retry_timeout: Duration::from_secs(3 * 60),
        }
    }
}
