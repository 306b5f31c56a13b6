//! [`ClientOptions`]: which Hub, with which token, and how patiently.

use std::fmt;
use std::time::Duration;

use super::retry::Patience;
use crate::token::Token;

/// How a [`Client`](super::Client) talks to the Hub. Settings that are missing here come from the
/// environment. `Debug` does not show the token.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    pub(super) endpoint: Option<String>,
    pub(super) token: TokenChoice,
    pub(super) follow_renames: bool,
    pub(super) patience: Patience,
    pub(super) timeout: Duration,
}

/// Which token is sent.
#[derive(Clone, Debug)]
pub(super) enum TokenChoice {
    /// The environment's token, if there is one.
    Environment,
    Anonymous,
    /// This text, which has not been checked yet.
    Given(Secret),
}

/// A text that `Debug` does not show.
#[derive(Clone)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl ClientOptions {
    /// Uses the Hub and the token of the environment, 5 retries, 10 s to connect, 30 s of silence.
    pub fn new() -> Self {
        Self {
            endpoint: None,
            token: TokenChoice::Environment,
            follow_renames: false,
            patience: Patience {
                retries: 5,
                pause: Duration::from_millis(500),
                connect_timeout: Duration::from_secs(10),
            },
            timeout: Duration::from_secs(30),
        }
    }

    /// Sets the address of the Hub, such as `https://huggingface.co`. By default that is
    /// `HF_ENDPOINT`, or the Hub itself.
    #[must_use]
    pub fn endpoint(self, endpoint: impl Into<String>) -> Self {
        Self { endpoint: Some(endpoint.into()), ..self }
    }

    /// Sets the token, such as `"hf_..."`. By default that is `HF_TOKEN`, or the content of the
    /// file `HF_TOKEN_PATH`. It is sent to the endpoint only, never to another host, and no message
    /// shows it. With `None`, no token is sent, even if the environment has one.
    ///
    /// A logger of the program that records the level `TRACE` of the HTTP client (`ureq`,
    /// `ureq_proto`) gets full requests, including the token. Turn these targets off.
    #[must_use]
    pub fn token(self, token: Option<&str>) -> Self {
        let given = |token: &str| TokenChoice::Given(Secret(token.into()));
        Self { token: token.map_or(TokenChoice::Anonymous, given), ..self }
    }

    /// Sets whether a renamed repository is read under its new name. By default it is an error that
    /// gives the new name, because the present owner of a name decides where it leads.
    #[must_use]
    pub fn follow_renames(self, follow: bool) -> Self {
        Self { follow_renames: follow, ..self }
    }

    /// Sets how often a request that fails for a passing reason is made again (5 by default): a
    /// broken connection, a server that is overloaded, a signed address that has expired. Each
    /// mebibyte that arrives allows one more. The pauses in between begin with half a second and
    /// double; a server may ask for up to a minute.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.patience.retries = retries;
        self
    }

    /// Sets the pause before the first retry, for the tests of this crate.
    #[doc(hidden)]
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.patience.pause = pause;
        self
    }

    /// Sets how long a request tries to reach a server that was not reached yet (10 s by default),
    /// all attempts together: the host is not found, the connection is refused, or nothing answers.
    /// A connection that is interrupted later is not given up by this time, only by
    /// [`retries`](Self::retries).
    #[doc(hidden)]
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.patience.connect_timeout = timeout;
        self
    }

    /// Sets how long a server may stay silent (30 s by default). A silent connection is given up,
    /// and the download continues with another. The head of an answer may take four times as long
    /// altogether. The time for a body has no limit, because a large file may take hours: from
    /// another thread, or a progress callback, a download can be cancelled.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Checks the token that is to be sent.
    pub(super) fn chosen_token(
        &self,
        environment: impl FnOnce() -> crate::Result<Option<Token>>,
    ) -> crate::Result<Option<Token>> {
        match &self.token {
            TokenChoice::Environment => environment(),
            TokenChoice::Anonymous => Ok(None),
            TokenChoice::Given(Secret(text)) => Token::new(text).map(Some),
        }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self::new()
    }
}
