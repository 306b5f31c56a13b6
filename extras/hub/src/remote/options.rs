//! [`RemoteOptions`]: how a store is connected to.

use std::time::Duration;

use super::error::Secrets;
use object_store::{BackoffConfig, RetryConfig};

/// How a remote store is connected to.
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

/// Shows no values, because they may be credentials.
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
    /// Takes options and credentials from the environment, and retries a request eight times.
    ///
    /// The variables have the names of `object_store` and the vendors' tools: they begin with
    /// `AWS_`, `GOOGLE_` or `AZURE_`. For `hf` they are the variables of Python's
    /// `huggingface_hub`, including its cache and offline settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets an option of the store or of its HTTP client, under the name that `object_store` gives
    /// it: `region`, `endpoint`, `access_key_id`, `skip_signature`, `connect_timeout`. It overrides
    /// the environment. Names that a store does not know are ignored.
    ///
    /// `connect_timeout` (`5s` by default) is the time that a connection may take. A server that
    /// was never reached is given up after twice this time, for any number of retries.
    ///
    /// `read_timeout` (`60s` by default) is the time for which a server may be silent. While bytes
    /// are sent, the connection may take none of them for twice that time: the system may still
    /// hold some megabytes that it took. So a line may be slow.
    ///
    /// For `http` and `https` the option `authorization` is the value of that header, such as
    /// `Bearer ...`. For `hf` there are the options `endpoint` and `token`. No other host gets
    /// these credentials when the server redirects.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.pairs.push((name.into(), value.into()));
        self
    }

    /// Sets how often a request is repeated that failed for a passing reason: an error 5xx or 429,
    /// or a connection that is broken or refused. The pauses in between grow from 0.1 to 10
    /// seconds. The default is 8. A request that began more than 3 minutes ago is not repeated,
    /// because its signature may have expired.
    #[must_use]
    pub fn retries(mut self, retries: usize) -> Self {
        self.retries = retries;
        self
    }

    /// Returns all options, beginning with the environment's. Only environment variables with this
    /// prefix count.
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

    /// Returns the values that no message may show.
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
