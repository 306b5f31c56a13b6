//! [`HttpFile`]: a file of a web server, read by ranges with the browser's `fetch`.

use std::io;
use std::path::PathBuf;

use js_sys::{Error, Uint8Array};
use safetensors_core::ReadAt;
use safetensors_core::io::AsyncReadAt;
use wasm_bindgen::prelude::*;

/// The bytes that opening fetches. [`AsyncStore`](safetensors_core::checkpoint::store::AsyncStore)
/// reads the same number first.
const START: u64 = 64 << 10;

#[wasm_bindgen(module = "/src/fetch.js")]
extern "C" {
    /// Part of a file.
    type Part;

    #[wasm_bindgen(method, getter)]
    fn bytes(this: &Part) -> Uint8Array;

    #[wasm_bindgen(method, getter)]
    fn length(this: &Part) -> f64;

    #[wasm_bindgen(method, getter)]
    fn etag(this: &Part) -> Option<String>;

    #[wasm_bindgen(catch, js_name = fetchRange)]
    async fn fetch_range(
        url: &str,
        start: f64,
        end: f64,
        etag: Option<String>,
    ) -> Result<JsValue, JsValue>;
}

/// A file of a web server that answers requests for ranges. It stays the version that was opened,
/// if the server sends an ETag.
pub(crate) struct HttpFile {
    url: String,
    len: u64,
    etag: Option<String>,
    start: Vec<u8>,
}

impl HttpFile {
    /// Fetches the first bytes of a file.
    pub(crate) async fn open(path: PathBuf) -> io::Result<Self> {
        let url = path.to_str().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let part = fetch(&url, 0, START, None).await?;
        let (len, etag, start) = (part.length() as u64, part.etag(), part.bytes().to_vec());
        Ok(Self { url, len, etag, start })
    }
}

impl AsyncReadAt for HttpFile {
    fn byte_len(&self) -> u64 {
        self.len
    }

    async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.start.read_exact_at(buf, offset).is_ok() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        let bytes = fetch(&self.url, offset, end, self.etag.clone()).await?.bytes();
        if bytes.length() as usize != buf.len() {
            let message = format!("expected {} bytes, found {}", buf.len(), bytes.length());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        bytes.copy_to(buf);
        Ok(())
    }

    fn version(&self) -> Option<String> {
        self.etag.clone()
    }
}

/// Fetches a range.
async fn fetch(url: &str, start: u64, end: u64, etag: Option<String>) -> io::Result<Part> {
    let part = fetch_range(url, start as f64, end as f64, etag).await;
    let part = part.map_err(|error| {
        let message = error.dyn_ref::<Error>().map(|error| String::from(error.message()));
        io::Error::other(message.unwrap_or_else(|| format!("{error:?}")))
    })?;
    if part.is_null() { Err(io::ErrorKind::NotFound.into()) } else { Ok(part.unchecked_into()) }
}
