//! The environment variables of Python's `huggingface_hub`, with their defaults.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
#[cfg(feature = "download")]
use std::{fs, path::Path};

#[cfg(feature = "download")]
use crate::error::{Error, is_absent};
use crate::error::{ErrorKind, Result};
#[cfg(feature = "download")]
use crate::token::Token;

#[cfg(feature = "download")]
pub(crate) const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Looks up environment variables. An empty one counts as not set.
pub(crate) struct Environment<'a> {
    get: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Environment<'static> {
    pub(crate) const PROCESS: Self = Self { get: &|name| env::var_os(name) };
}

impl Environment<'_> {
    /// `HF_HUB_CACHE`, the older `HUGGINGFACE_HUB_CACHE`, or `hub` in the home.
    pub(crate) fn cache(&self) -> Result<PathBuf> {
        match self.path("HF_HUB_CACHE").or_else(|| self.path("HUGGINGFACE_HUB_CACHE")) {
            Some(cache) => Ok(cache),
            None => Ok(self.home()?.join("hub")),
        }
    }

    /// `HF_HOME`, or `huggingface` in the user's cache.
    fn home(&self) -> Result<PathBuf> {
        if let Some(home) = self.path("HF_HOME") {
            return Ok(home);
        }
        let cache = match self.path("XDG_CACHE_HOME") {
            Some(cache) => cache,
            None => self.user().ok_or(ErrorKind::NoHome)?.join(".cache"),
        };
        Ok(cache.join("huggingface"))
    }

    fn user(&self) -> Option<PathBuf> {
        let name = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
        (self.get)(name).filter(|home| !home.is_empty()).map(PathBuf::from)
    }

    /// Replaces `~`, and then `$NAME` and `${NAME}`.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let path = (self.get)(name).filter(|path| !path.is_empty()).map(PathBuf::from)?;
        let path = match (path.strip_prefix("~"), self.user()) {
            (Ok(rest), Some(user)) => user.join(rest),
            _ => path,
        };
        match path.to_str() {
            Some(text) if text.contains('$') => Some(self.with_variables(text).into()),
            _ => Some(path),
        }
    }

    /// As in Python, unknown variables stay as written, and values are not searched again.
    fn with_variables(&self, text: &str) -> OsString {
        let mut parts = text.split('$');
        let mut whole = OsString::from(parts.next().unwrap_or_default());
        for part in parts {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let (name, rest) = match part.strip_prefix('{').and_then(|part| part.split_once('}')) {
                Some(found) => found,
                None => part.split_at(part.find(|c| !is_word(c)).unwrap_or(part.len())),
            };
            match Some(name).filter(|name| !name.is_empty()).and_then(|name| (self.get)(name)) {
                Some(value) => {
                    whole.push(value);
                    whole.push(rest);
                }
                None => {
                    whole.push("$");
                    whole.push(part);
                }
            }
        }
        whole
    }
}

#[cfg(feature = "download")]
impl Environment<'_> {
    pub(crate) fn endpoint(&self) -> String {
        self.text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.into())
    }

    /// `HF_HUB_OFFLINE` or, if that is not set at all, `TRANSFORMERS_OFFLINE`.
    pub(crate) fn is_offline(&self) -> bool {
        match self.text("HF_HUB_OFFLINE") {
            Some(_) => self.is_true("HF_HUB_OFFLINE"),
            None => self.is_true("TRANSFORMERS_OFFLINE"),
        }
    }

    /// `HF_TOKEN`, the older `HUGGING_FACE_HUB_TOKEN`, the file of `HF_TOKEN_PATH`, or `token` in
    /// the home. `None` also if `HF_HUB_DISABLE_IMPLICIT_TOKEN` is set.
    pub(crate) fn token(&self) -> Result<Option<Token>> {
        if self.is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            return Ok(None);
        }
        let token = self.text("HF_TOKEN").or_else(|| self.text("HUGGING_FACE_HUB_TOKEN"));
        if let Some(token) = token.filter(|token| !token.trim().is_empty()) {
            return Token::new(&token).map(Some);
        }
        let path = match self.path("HF_TOKEN_PATH") {
            Some(path) => path,
            None => match self.home() {
                Ok(home) => home.join("token"),
                // Without a home there is no file either.
                Err(_) => return Ok(None),
            },
        };
        match fs::read_to_string(&path) {
            Ok(token) if token.trim().is_empty() => Ok(None),
            Ok(token) => Token::new(&token).map(Some),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::io(error, &path)),
        }
    }

    /// They replace the built-in ones: `SSL_CERT_FILE`, or `REQUESTS_CA_BUNDLE`.
    pub(crate) fn certificates(&self) -> Option<PathBuf> {
        self.path("SSL_CERT_FILE").or_else(|| self.path("REQUESTS_CA_BUNDLE"))
    }

    /// Takes the name in upper case. As in Python, lower case takes precedence; if empty, there is
    /// no proxy.
    pub(crate) fn proxy(&self, name: &str) -> Option<String> {
        // A web server sets this one from the header `Proxy` of a request.
        let is_of_client = name == "HTTP_PROXY" && (self.get)("REQUEST_METHOD").is_some();
        let upper = || (self.get)(name).filter(|_| !is_of_client);
        let value = (self.get)(&name.to_ascii_lowercase()).or_else(upper)?;
        Some(value.to_string_lossy().trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name)?.into_string().ok().filter(|text| !text.is_empty())
    }

    fn is_true(&self, name: &str) -> bool {
        let value = self.text(name).unwrap_or_default().to_ascii_uppercase();
        matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE")
    }
}

#[cfg(feature = "download")]
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::io(error, path))
}

#[cfg(test)]
pub(crate) fn with<T>(pairs: &[(&str, &str)], check: impl FnOnce(Environment<'_>) -> T) -> T {
    let get = |name: &str| {
        pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    };
    check(Environment { get: &get })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_cache_path_is_that_of_python() {
        for (pairs, cache) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "~/hf")], "/u/hf/hub"),
            (&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HOME", "/u"), ("HF_HUB_CACHE", "")], "/u/.cache/huggingface/hub"),
            (&[("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")], "/new"),
            (&[("HOME", "/u"), ("A", "a"), ("HF_HOME", "~/$A/${A}b$")], "/u/a/ab$/hub"),
            (&[("A_1", "a"), ("HF_HUB_CACHE", "/$A_1.x/$B/${C/${}$A_1")], "/a.x/$B/${C/${}a"),
            (&[("A", "$A"), ("HF_HUB_CACHE", "/$A")], "/$A"),
            (
                &[("HOME", "/u"), ("SCRATCH", "/s"), ("XDG_CACHE_HOME", "$SCRATCH")],
                "/s/huggingface/hub",
            ),
        ] {
            assert_eq!(with(pairs, |env| env.cache()).unwrap(), PathBuf::from(cache));
        }
        assert!(matches!(
            with(&[], |env| env.cache()).unwrap_err().other(),
            Some(ErrorKind::NoHome)
        ));
    }

    #[cfg(feature = "download")]
    #[test]
    fn switches_are_pythons() {
        for (value, is_on) in
            [("1", true), ("on", true), ("Yes", true), ("TRUE", true), ("0", false), ("", false)]
        {
            assert_eq!(with(&[("HF_HUB_OFFLINE", value)], |env| env.is_offline()), is_on);
            assert_eq!(with(&[("TRANSFORMERS_OFFLINE", value)], |env| env.is_offline()), is_on);
        }
        // The other one counts only if there is no word in this one.
        for (value, is_offline) in [("0", false), ("no", false), ("1", true), ("", true)] {
            let pairs = [("HF_HUB_OFFLINE", value), ("TRANSFORMERS_OFFLINE", "1")];
            assert_eq!(with(&pairs, |env| env.is_offline()), is_offline, "{value:?}");
        }
        assert_eq!(with(&[], |env| env.endpoint()), DEFAULT_ENDPOINT);
        assert_eq!(with(&[("HF_ENDPOINT", "http://m")], |env| env.endpoint()), "http://m");
    }

    #[cfg(feature = "download")]
    #[test]
    fn tokens_come_from_the_variable_or_a_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let other = dir.path().join("other");
        fs::write(&other, " hf_other ").unwrap();
        let (home, other) = (dir.path().to_str().unwrap(), other.to_str().unwrap());
        let token = |pairs: &[(&str, &str)]| {
            let token = with(pairs, |env| env.token()).unwrap();
            token.map(|token| token.secret().to_owned())
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(token(&[("HF_TOKEN", "hf_a\n"), ("HF_HOME", home)]), is("hf_a"));
        assert_eq!(token(&[("HF_TOKEN", " "), ("HF_HOME", home)]), is("hf_file"));
        assert_eq!(token(&[("HF_HOME", home)]), is("hf_file"));
        let older = ("HUGGING_FACE_HUB_TOKEN", "hf_older");
        assert_eq!(token(&[older, ("HF_HOME", home)]), is("hf_older"));
        assert_eq!(token(&[older, ("HF_TOKEN", "hf_a")]), is("hf_a"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN_PATH", other)]), is("hf_other"));
        assert_eq!(token(&[("HF_HOME", "/nowhere")]), None);
        assert_eq!(token(&[]), None);
        let disabled = ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
        assert_eq!(token(&[("HF_TOKEN", "hf_a"), ("HF_HOME", home), disabled]), None);
    }
}
