//! [`Url`]: the address of a request. Its query may be a signature, so it is never shown.

use std::fmt;

use ureq::http::Uri;

use crate::error::ErrorKind;
use crate::proxy::{Proxies, Proxy};

/// Absolute, `http` or `https`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url(Uri);

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let uri: Uri = text.parse().map_err(|_| "it is no URL")?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err("its scheme is neither http nor https");
        }
        match uri.authority() {
            Some(authority) if authority.as_str().contains('@') => {
                Err("it has a user or a password")
            }
            Some(authority) if !authority.host().is_empty() => Ok(Self(uri)),
            _ => Err("it has no host"),
        }
    }

    pub(super) fn join(&self, location: &str) -> Option<Self> {
        let base = format!("{}://{}", self.scheme(), self.0.authority()?);
        // A relative address may have `:` and `://` too, but only after its first `/`, `?` or `#`.
        let first = location.split(['/', '?', '#']).next().unwrap_or_default();
        if first.contains(':') {
            Self::parse(location).ok()
        } else if location.starts_with("//") {
            Self::parse(&format!("{}:{location}", self.scheme())).ok()
        } else if location.starts_with('/') {
            Self::parse(&format!("{base}{location}")).ok()
        } else if location.starts_with('?') {
            Self::parse(&format!("{base}{}{location}", self.path())).ok()
        } else {
            let folder = self.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            Self::parse(&format!("{base}{folder}/{location}")).ok()
        }
    }

    /// Compares scheme, host and port.
    pub(super) fn has_origin_of(&self, other: &Self) -> bool {
        self.origin() == other.origin()
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.scheme() == "https"
    }

    pub(super) fn path(&self) -> &str {
        self.0.path()
    }

    /// With a port if given, for messages.
    pub(super) fn host(&self) -> String {
        self.0.authority().map_or_else(String::new, |authority| authority.to_string())
    }

    pub(super) fn in_a_circle(&self) -> ErrorKind {
        let problem = "it sends from one address to the next".into();
        ErrorKind::BadAnswer { host: self.host(), problem }
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.0
    }

    pub(super) fn proxy<'p>(&self, proxies: &'p Proxies) -> Option<&'p Proxy> {
        proxies.choose(self.scheme(), self.0.host().unwrap_or_default(), self.0.port_u16())
    }

    fn scheme(&self) -> &str {
        self.0.scheme_str().unwrap_or_default()
    }

    fn origin(&self) -> (&str, String, u16) {
        let standard = if self.is_encrypted() { 443 } else { 80 };
        let host = self.0.host().unwrap_or_default().to_ascii_lowercase();
        (self.scheme(), host, self.0.port_u16().unwrap_or(standard))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.host(), self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn locations_are_joined() {
        let base = url("https://hub.test/a/b?x=1");
        for (location, joined) in [
            ("/c?y=2", "https://hub.test/c"),
            ("c", "https://hub.test/a/c"),
            ("//cdn.test/c", "https://cdn.test/c"),
            ("/c?to=http://x/y", "https://hub.test/c"),
            ("c?to=http://x/y", "https://hub.test/a/c"),
            ("c/http://x/y", "https://hub.test/a/c/http://x/y"),
            ("?to=http://x/y", "https://hub.test/a/b"),
            ("http://cdn.test:81/c?sig=s", "http://cdn.test:81/c"),
        ] {
            assert_eq!(format!("{:?}", base.join(location).unwrap()), joined);
        }
        for bad in ["ftp://x/y", "https://u:p@x/y", "https:///y", "file:///etc/passwd", "/a b"] {
            assert_eq!(base.join(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let base = url("https://Hub.test/");
        for same in ["https://hub.test/x", "https://hub.test:443/"] {
            assert!(url(same).has_origin_of(&base), "{same}");
        }
        for other in ["http://hub.test/", "https://hub.test:444/", "https://hub.test.evil.test/"] {
            assert!(!url(other).has_origin_of(&base), "{other}");
        }
    }
}
