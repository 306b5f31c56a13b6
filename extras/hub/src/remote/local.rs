//! [`local_path`]: addresses of `file` are paths of the local disk.

use std::io;
use std::path::PathBuf;

use safetensors_core::{Error, ErrorKind, Result};

use super::error::shown_address;
use crate::address::after_scheme;
use crate::repo::percent_decoded;

/// Returns the path in an address such as `file:///directory/model.safetensors`; `None` for other
/// addresses and paths. This module reads and saves it like core does the path.
///
/// Escapes such as `%20` are decoded, and `?`, `#` and `%` need them. The host is `localhost` or
/// omitted.
///
/// ```
/// use safetensors_hub::remote::local_path;
///
/// let path = local_path("file:///data/my%20model")?;
/// # #[cfg(unix)]
/// assert_eq!(path.unwrap().to_str(), Some("/data/my model"));
/// assert!(local_path("s3://bucket/model")?.is_none());
/// assert!(local_path("file://another-machine/model").is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Io`] for a malformed address of `file`.
pub fn local_path(address: &str) -> Result<Option<PathBuf>> {
    let Some(rest) = after_scheme(address, "file") else { return Ok(None) };
    let path = path(rest).map_err(|problem| {
        let error = io::Error::new(io::ErrorKind::InvalidInput, problem);
        Error::from(ErrorKind::Io(error)).in_file(shown_address(address))
    });
    path.map(Some)
}

fn path(rest: &str) -> std::result::Result<PathBuf, &'static str> {
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
        return Err("the files of other hosts are not reached; expected file:///path");
    }
    if path.is_empty() {
        return Err("expected file:///path");
    }
    if path.contains(['?', '#']) {
        return Err("in the name of a file, write %3F and %23 for ? and #");
    }
    let decoded = percent_decoded(path);
    let bytes = decoded.ok_or("expected two hexadecimal digits after %, and %25 for it")?;
    if bytes.contains(&0) {
        return Err("no name of a file has %00 in it");
    }
    native(bytes)
}

#[cfg(unix)]
fn native(bytes: Vec<u8>) -> std::result::Result<PathBuf, &'static str> {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    Ok(OsString::from_vec(bytes).into())
}

#[cfg(not(unix))]
fn native(bytes: Vec<u8>) -> std::result::Result<PathBuf, &'static str> {
    let text = String::from_utf8(bytes).map_err(|_| "the name of a file is not UTF-8")?;
    // A drive comes first in a path: `file:///C:/a` is `C:/a`.
    let has_drive = text.as_bytes().get(2) == Some(&b':');
    Ok(if has_drive { text[1..].into() } else { text.into() })
}

#[cfg(all(test, unix))]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn addresses_of_files_become_local_paths() {
        for (address, expected) in [
            ("file:///a/b.safetensors", &b"/a/b.safetensors"[..]),
            ("file://localhost/a/", b"/a/"),
            ("FILE:///a", b"/a"),
            ("file://LocalHost/a", b"/a"),
            ("file:///", b"/"),
            ("file:///a%20b/m%C3%A4%25%23%3f.x", b"/a b/m\xc3\xa4%#?.x"),
            // No UTF-8.
            ("file:///%ff\\ @:+&=", b"/\xff\\ @:+&="),
        ] {
            let path = local_path(address).unwrap().unwrap();
            assert_eq!(path.as_os_str(), OsStr::from_bytes(expected), "{address}");
        }
        for other in ["/a/b", "file:/a", "s3://bucket/file:///a", "files:///a", "memory:///a", ""] {
            assert!(local_path(other).unwrap().is_none(), "{other}");
        }
    }

    #[test]
    fn unsupported_addresses_of_files_are_refused() {
        for (address, words) in [
            ("file://", "expected file:///path"),
            ("file://localhost", "expected file:///path"),
            ("file://host/a", "other hosts"),
            ("file://user:very-secret@host/a", "other hosts"),
            ("file://localhost:80/a", "other hosts"),
            ("file://./a", "other hosts"),
            ("file:///a?b", "%3F"),
            ("file:///a#1", "%23"),
            ("file:///a%", "%25"),
            ("file:///a%2", "%25"),
            ("file:///a%+1", "%25"),
            ("file:///a%2ä", "%25"),
            ("file:///a%00b", "%00"),
        ] {
            let error = local_path(address).unwrap_err().to_string();
            assert!(error.contains(words), "{address}: {error}");
            assert!(!error.contains("very-secret"), "{error}");
        }
    }
}
