//! [`ClientOptions`]: the Hub's address, the token and the patience.

use std::fmt;
use std::time::Duration;

use super::retry::Patience;
use crate::token::Token;

/// Options of a [`Client`](super::Client), by default from the environment. `Debug` hides the
/// token.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    pub(super) endpoint: Option<String>,
    pub(super) token: TokenChoice,
    pub(super) follow_renames: bool,
    pub(super) patience: Patience,
    pub(super) timeout: Duration,
}

#[derive(Clone, Debug)]
pub(super) enum TokenChoice {
    Environment,
    Anonymous,
    Given(Secret),
}

/// `Debug` hides it.
#[derive(Clone)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl ClientOptions {
    /// Returns the environment's settings, 5 retries, 10 s to connect, 30 s of silence.
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

    /// Sets the address of the Hub: by default `HF_ENDPOINT`, or `https://huggingface.co`.
    #[must_use]
    pub fn endpoint(self, endpoint: impl Into<String>) -> Self {
        Self { endpoint: Some(endpoint.into()), ..self }
    }

    /// Sets the token, or with `None` sends none. By default it is `HF_TOKEN`, or the content of
    /// the file `HF_TOKEN_PATH`. Only the endpoint gets it, and no message shows it.
    ///
    /// A logger of the level `TRACE` for the targets `ureq` and `ureq_proto` sees the token. Turn
    /// these off.
    #[must_use]
    pub fn token(self, token: Option<&str>) -> Self {
        let given = |token: &str| TokenChoice::Given(Secret(token.into()));
        Self { token: token.map_or(TokenChoice::Anonymous, given), ..self }
    }

    /// Reads a renamed repository under its new name. By default it is an error with the new name,
    /// because the present owner of a name decides where it leads.
    #[must_use]
    pub fn follow_renames(self, follow: bool) -> Self {
        Self { follow_renames: follow, ..self }
    }

    /// Sets the number of retries after a broken connection, an overloaded server or an expired
    /// address: 5 by default. Each mebibyte that arrives allows one more. Pauses begin at half a
    /// second and double; a server may ask for up to a minute.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.patience.retries = retries;
        self
    }

    /// The pause before the first retry, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.patience.pause = pause;
        self
    }

    /// Limits the attempts to reach a server that has not answered yet: 10 s by default, all
    /// together. Later interruptions are limited only by [`retries`](Self::retries).
    #[doc(hidden)]
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.patience.connect_timeout = timeout;
        self
    }

    /// Limits a server's silence: 30 s by default, and four times that for the head of an answer.
    /// The download then continues on a new connection. A body has no time limit; cancel from a
    /// progress callback or another thread.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

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
