//! [`Client`]: lists the files of a repository on the Hub, and reads them by range.
//!
//! All calls block, and work from several threads and inside an asynchronous runtime.

mod body;
mod file;
mod http;
mod listing;
mod options;
mod refusal;
mod resolve;
mod retry;
mod url;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use file::HubFile;
#[cfg(feature = "remote")]
pub(crate) use listing::BucketEntry;
pub use listing::RepoFiles;
pub use options::ClientOptions;
#[cfg(feature = "remote")]
pub(crate) use retry::GLANCE;

use crate::environment::Environment;
use crate::error::{ErrorKind, Result};
use crate::repo::{RepoId, Revision};
use http::Http;
use refusal::RequestSubject;
use retry::{Attempts, Patience};
use url::Url;

/// A connection to the Hub. Clones share it.
///
/// ```no_run
/// use safetensors_core::ReadAt;
/// use safetensors_hub::Revision;
/// use safetensors_hub::client::{Client, ClientOptions};
///
/// let client = Client::new(&ClientOptions::new())?;
/// let repo = "openai-community/gpt2".parse()?;
/// let file = client.file(&repo, &Revision::default(), "model.safetensors")?;
/// let mut length = [0; 8];
/// file.read_exact_at(&mut length, 0)?;
/// println!("{} bytes, {} of them header", file.byte_len(), u64::from_le_bytes(length));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    http: Http,
    /// Without `/` at its end.
    endpoint: String,
    patience: Patience,
    follow_renames: bool,
}

impl Client {
    /// Makes a client, without a request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadEndpoint`]; [`ErrorKind::BadSetting`] for a token, certificates or proxy;
    /// `Io`.
    pub fn new(options: &ClientOptions) -> Result<Self> {
        let environment = Environment::PROCESS;
        let text = options.endpoint.clone().unwrap_or_else(|| environment.endpoint());
        let endpoint = text.trim_end_matches('/').to_owned();
        let bad = |problem| ErrorKind::BadEndpoint { found: shown(&text), problem };
        let url = Url::parse(&endpoint).map_err(bad)?;
        if url.uri().query().is_some() {
            return Err(bad("it has a query").into());
        }
        let token = options.chosen_token(|| environment.token())?;
        let patience = options.patience;
        let http = Http::new(url, token, patience.connect_timeout, options.timeout, &environment)?;
        let follow_renames = options.follow_renames;
        Ok(Self { shared: Arc::new(Shared { http, endpoint, patience, follow_renames }) })
    }

    fn endpoint(&self) -> &str {
        &self.shared.endpoint
    }

    fn http(&self) -> &Http {
        &self.shared.http
    }

    fn subject<'a>(
        &self,
        repo: &'a RepoId,
        revision: &'a Revision,
        file: Option<&'a str>,
    ) -> RequestSubject<'a> {
        let page = format!("{}/{repo}", self.endpoint());
        RequestSubject { repo, revision, file, has_token: self.http().has_token(), page }
    }

    fn attempts<'a>(&'a self, stop: &'a AtomicBool) -> Attempts<'a> {
        Attempts::new(self.shared.patience, self.http().was_reached(), stop)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.shared.endpoint).finish_non_exhaustive()
    }
}

/// Removes a password.
fn shown(endpoint: &str) -> String {
    match (endpoint.find("://"), endpoint.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}..{}", &endpoint[..scheme + 3], &endpoint[at..])
        }
        _ => endpoint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_checked_without_showing_passwords() {
        for bad in ["", "huggingface.co", "ftp://x", "http://", "http://x?y", "http://a:pw@x"] {
            let options = ClientOptions::new().token(None).endpoint(bad);
            let error = Client::new(&options).unwrap_err();
            assert!(matches!(error.other(), Some(ErrorKind::BadEndpoint { .. })), "{bad}");
            assert!(!format!("{error} {error:?}").contains("pw"), "{error}");
        }
        let options = ClientOptions::new().endpoint("http://x/y//").token(Some("hf_secret"));
        let client = Client::new(&options).unwrap();
        assert_eq!(client.endpoint(), "http://x/y");
        assert!(!format!("{client:?} {options:?}").contains("hf_secret"));
    }
}
