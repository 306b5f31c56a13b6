//! [`Token`]: a secret that is never shown.

use std::fmt;

use crate::error::{ErrorKind, Result};

/// `Debug` hides it, and it has no `Display`.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// Trims space and line ends. The error for a malformed token hides it.
    pub(crate) fn new(text: &str) -> Result<Self> {
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = "the token has characters that no token has".into();
            return Err(ErrorKind::BadSetting { setting: "token", problem }.into());
        }
        Ok(Self(token.into()))
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown() {
        let token = Token::new(" hf_secret\r\n").unwrap();
        assert_eq!(token.secret(), "hf_secret");
        assert_eq!(format!("{token:?}"), "Token(..)");
        for bad in ["", " ", "hf_sec ret", "hf_secret\nX-Injected: 1", "hf_sécret"] {
            let error = Token::new(bad).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("ret"), "{error:?}");
        }
    }
}
