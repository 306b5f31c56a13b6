//! [`RemotePlace`]: the store of an address, and the paths of its files.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreScheme};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue};
use safetensors_core::{Error, ErrorKind, Result};
use url::Url;

use super::client::Connector;
use super::error::shown_address;
use super::object::Service;
use super::{AddressKind, RemoteOptions};

const SILENCE: Duration = Duration::from_secs(60);

/// By one request. Other stores have no such limit.
const COPIED_BY_S3: u64 = 5 << 30;

#[derive(Debug)]
pub(super) struct RemotePlace {
    pub(super) service: Arc<Service>,
    pub(super) root: String,
    pub(super) shown: String,
    pub(super) key: Key,
    /// Also takes files.
    pub(super) lists: bool,
}

impl RemotePlace {
    /// Makes no request. Fails for a [path of the disk](super::local_path).
    pub(super) fn new(address: &str, options: &RemoteOptions) -> Result<Self> {
        connect(address, options)
            .map_err(|error| Error::from(ErrorKind::Io(error)).in_file(shown_address(address)))
    }

    pub(super) fn writable(address: &str, options: &RemoteOptions) -> Result<Self> {
        let place = Self::new(address, options)?;
        if !place.lists {
            let message = "files are not saved to web servers; expected an address of a bucket";
            let error = io::Error::new(io::ErrorKind::Unsupported, message);
            return Err(Error::from(ErrorKind::Io(error)).in_file(&place.shown));
        }
        Ok(place)
    }
}

fn connect(address: &str, options: &RemoteOptions) -> io::Result<RemotePlace> {
    let url = Url::parse(address).map_err(|error| invalid(format!("not an address: {error}")))?;
    if !url.username().is_empty() && !url.scheme().starts_with("ab") && url.scheme() != "az"
        || url.password().is_some()
    {
        let message = "credentials do not belong in an address; set them in the environment";
        return Err(invalid(message.into()));
    }
    // The parser has made the scheme lower case.
    let kind = AddressKind::detect(url.as_str());
    let is_web = kind == Some(AddressKind::Web);
    let (kind, key) = match (kind, ObjectStoreScheme::parse(&url)) {
        // Also the web addresses of buckets, so that public files need no credentials.
        (Some(kind @ AddressKind::Web), _) => {
            (kind, Key::from_url_path(url.path()).map_err(|e| invalid(e.to_string()))?)
        }
        // `object_store` does not sync files, so it saves none to the disk.
        (None | Some(AddressKind::Hub | AddressKind::Local), _) | (_, Err(_)) => {
            let schemes = AddressKind::SCHEMES.map(|(scheme, _)| scheme).join(", ");
            return Err(invalid(format!("expected an address that begins with one of {schemes}")));
        }
        (Some(kind), Ok((_, key))) => (kind, key),
    };
    if !is_web && (url.query().is_some() || url.fragment().is_some()) {
        let message = "an address of this kind has no query and no fragment; for a ? or a # in a \
                       name, write %3F or %23";
        return Err(invalid(message.into()));
    }
    let pairs = options.pairs(kind.variables());
    let secrets = RemoteOptions::secrets(&pairs);
    let store = store(&url, kind, &pairs, options).map_err(|error| secrets.io(&error))?;
    let most_copied = if kind == AddressKind::S3 { COPIED_BY_S3 } else { u64::MAX };
    let shown = shown_address(address);
    let root = match url.host_str() {
        Some(_) => shown.split('/').take(3).collect::<Vec<_>>().join("/"),
        None => format!("{}:///", url.scheme()),
    };
    let slash = if root.ends_with('/') || key.as_ref().is_empty() { "" } else { "/" };
    Ok(RemotePlace {
        service: Service::new(store, secrets, most_copied),
        shown: format!("{root}{slash}{key}"),
        root,
        key,
        lists: !is_web,
    })
}

macro_rules! built {
    ($builder:ty, $url:expr, $pairs:expr, $client:expr, $options:expr, $follows:expr) => {{
        let mut builder = <$builder>::new()
            .with_url($url)
            .with_client_options($client)
            .with_retry($options.retry_config())
            .with_http_connector(Connector { follows_redirects: $follows });
        for (name, value) in $pairs {
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        Arc::new(builder.build()?) as Arc<dyn ObjectStore>
    }};
}

fn store(
    url: &Url,
    kind: AddressKind,
    pairs: &[(String, String)],
    options: &RemoteOptions,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    let client = ClientOptions::new().with_timeout_disabled().with_read_timeout(SILENCE);
    Ok(match kind {
        AddressKind::Memory => {
            static FILES: OnceLock<Arc<InMemory>> = OnceLock::new();
            FILES.get_or_init(Arc::default).clone()
        }
        AddressKind::S3 => built!(AmazonS3Builder, url.as_str(), pairs, client, options, false),
        AddressKind::Gcs => {
            built!(GoogleCloudStorageBuilder, url.as_str(), pairs, client, options, false)
        }
        AddressKind::Azure => {
            built!(MicrosoftAzureBuilder, url.as_str(), pairs, client, options, false)
        }
        _ => {
            let mut headers = HeaderMap::new();
            // Some servers send a compressed file completely, for any range.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            let is_header = |name: &str| name.eq_ignore_ascii_case("authorization");
            if let Some((_, value)) = pairs.iter().rev().find(|(name, _)| is_header(name)) {
                let bad = |_| object_store::Error::Generic {
                    store: "HTTP",
                    source: "the option authorization is not the value of a header".into(),
                };
                let mut value = HeaderValue::from_str(value).map_err(bad)?;
                value.set_sensitive(true);
                headers.insert(AUTHORIZATION, value);
            }
            let client =
                client.with_default_headers(headers).with_allow_http(url.scheme() == "http");
            // The query may be a signature, which every request needs.
            let mut origin = url.clone();
            origin.set_path("");
            origin.set_fragment(None);
            built!(HttpBuilder, origin.as_str(), pairs, client, options, true)
        }
    })
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_s3_copies_no_large_files() {
        let options = RemoteOptions::new();
        let most_copied =
            |address| RemotePlace::new(address, &options).unwrap().service.most_copied;
        assert_eq!(most_copied("s3://bucket/a"), 5 * 1024 * 1024 * 1024);
        assert_eq!(most_copied("memory:///a"), u64::MAX);
        // The disk is no place here.
        assert!(RemotePlace::new("file:///a", &options).is_err());
    }
}
