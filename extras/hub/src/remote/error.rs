//! Errors of stores as I/O errors, without secrets.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use object_store::Error;
use safetensors_core::framework::Escaped;

pub(super) const CHANGED: &str = "the object has changed since it was opened";

/// Values of options that are credentials.
#[derive(Clone, Debug, Default)]
pub(super) struct Secrets(Arc<[String]>);

impl Secrets {
    /// Collects values of options with names like credentials.
    pub(super) fn among<'a>(options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        const WORDS: [&str; 8] = [
            "key",
            "secret",
            "token",
            "password",
            "signature",
            "sas",
            "credential",
            "authorization",
        ];
        let is_secret = |name: &str| {
            let name = name.to_ascii_lowercase();
            WORDS.iter().any(|word| name.contains(word))
        };
        let values = options.into_iter().filter(|(name, _)| is_secret(name));
        // A server may repeat all of a value or, of `Bearer 0123`, only the last word.
        let last = |value: &'_ str| value.rfind(' ').map_or(0, |space| space + 1);
        let values = values.flat_map(|(_, value)| [value, &value[last(value)..]]);
        // Shorter values, such as `true`, could be any word of a message.
        Self(values.filter(|value| value.len() > 5).map(str::to_owned).collect())
    }

    pub(super) fn io(&self, error: &Error) -> io::Error {
        let (kind, what) = match error {
            Error::NotFound { .. } => (io::ErrorKind::NotFound, "the store has no such object"),
            Error::Precondition { .. } | Error::NotModified { .. } => {
                return io::Error::other(CHANGED);
            }
            Error::AlreadyExists { .. } => {
                (io::ErrorKind::AlreadyExists, "the object exists already")
            }
            Error::PermissionDenied { .. } => {
                (io::ErrorKind::PermissionDenied, "the store refuses access with these credentials")
            }
            Error::Unauthenticated { .. } => {
                (io::ErrorKind::PermissionDenied, "the store asks for valid credentials")
            }
            Error::NotSupported { .. } => (
                io::ErrorKind::Unsupported,
                "the server cannot send a part of a file, so it must be downloaded whole",
            ),
            Error::NotImplemented { .. } => {
                (io::ErrorKind::Unsupported, "the store cannot do this")
            }
            _ if is_denied_listing(error) => {
                (io::ErrorKind::PermissionDenied, "the store refuses access with these credentials")
            }
            _ => (io::ErrorKind::Other, "the store failed"),
        };
        let message = match &self.details(error) {
            details if details.is_empty() => what.to_owned(),
            details => format!("{what}: {details}"),
        };
        io::Error::new(kind, message)
    }

    /// The server's message, without addresses, credentials and repetition.
    fn details(&self, error: &Error) -> String {
        let mut chain = Vec::new();
        let mut next = error.source();
        while let Some(error) = next {
            chain.push(error.to_string());
            next = error.source();
        }
        // The outer errors have the address of the request and the number of retries before the
        // inner text.
        let inner = chain.iter().rposition(|text| text.contains("Error performing "));
        let mut details = String::new();
        for text in &chain[inner.map_or(0, |position| position + 1)..] {
            if details.contains(text.as_str()) {
                continue;
            }
            if !details.is_empty() {
                details.push_str(": ");
            }
            details.push_str(text);
        }
        self.clean(&details)
    }

    /// Returns one line of bounded length, without credentials.
    pub(super) fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &*self.0 {
            text = text.replace(secret.as_str(), "***");
        }
        let words = text
            .split_whitespace()
            .map(|word| if word.contains("://") { shown_address(word) } else { word.to_owned() });
        Escaped(&words.collect::<Vec<_>>().join(" ")).to_string()
    }
}

/// `object_store` has no kind for this, only a text.
fn is_denied_listing(error: &Error) -> bool {
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        let status = text.strip_prefix("Server returned non-2xx status code: ");
        if status.is_some_and(|it| it.starts_with("401") || it.starts_with("403")) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Removes user, password and query.
pub(super) fn shown_address(address: &str) -> String {
    let address = address.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let host_len = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(host_len);
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credential_is_shown() {
        let secrets = Secrets::among([
            ("aws_secret_access_key", "wJalrXUtnFEMI"),
            ("AWS_SESSION_TOKEN", "FwoGZXIvYXdzE"),
            ("aws_skip_signature", "true"),
            ("aws_region", "eu-central-1"),
            ("authorization", "Bearer abcdef"),
            ("password", "three secret words"),
        ]);
        assert_eq!(secrets.clean("it got three secret words"), "it got ***");
        let text = "it is true that eu-central-1 got wJalrXUtnFEMI and abcdef from \
                    https://user:pass@host/a/b?X-Amz-Signature=0123&x=y#z";
        assert_eq!(
            secrets.clean(text),
            "it is true that eu-central-1 got *** and *** from https://host/a/b"
        );
    }

    #[test]
    fn text_of_a_server_is_bounded_and_in_one_line() {
        let secrets = Secrets::default();
        let shown = secrets.clean(&format!("<a>\n\"b\"\u{1b}[31m{}", "x".repeat(10_000)));
        assert!(shown.starts_with(r#"<a> "b"\u{1b}[31mxxx"#), "{shown}");
        assert!(shown.len() < 600);
    }

    #[test]
    fn credentials_and_queries_are_removed_from_addresses() {
        for (address, shown) in [
            ("s3://bucket/a", "s3://bucket/a"),
            ("http://u:p@h", "http://h"),
            ("https://u@h:80/a@b?c#d", "https://h:80/a@b"),
            ("memory:///a", "memory:///a"),
        ] {
            assert_eq!(shown_address(address), shown);
        }
    }
}
