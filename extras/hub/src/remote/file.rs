//! [`RemoteFile`]: an object of a store, read by ranges.

use std::sync::Arc;
use std::{fmt, io};

use object_store::path::Path;
use safetensors_core::ReadAt;
use safetensors_core::io::{FileSource, ReadRange, Requests};

use super::fetch::fill;
use super::hub_reads::{self, Slots};
use super::object::{IN_FLIGHT, Object, Service};
use super::plan::{Request, plan};
use crate::client::HubFile;

/// Fetched by opening: most headers, and small tensors.
const START: u64 = 512 << 10;

/// Bytes of a call of the loader. With [`IN_FLIGHT`] they bound the memory for conversions.
const CALL: usize = 8 << 20;

/// A file in a remote store, fetched by ranges.
///
/// Opening fetches and keeps the first 512 KiB, by one request. If the object is replaced later,
/// reading is an error: by the ETag, without one by length and time in full seconds, or by the
/// length alone.
///
/// Reads are planned: see [Requests](super#requests). The methods [block](super#threads).
///
/// A file of the local disk is read like in core.
pub struct RemoteFile(Source);

enum Source {
    Disk(FileSource),
    Remote(Fetched),
}

struct Fetched {
    origin: Origin,
    start: Vec<u8>,
}

enum Origin {
    Object(Arc<Object>),
    Hub(Box<HubFile>, Arc<Slots>),
}

impl Origin {
    fn fill(&self, requests: Vec<Request<'_>>) -> io::Result<()> {
        match self {
            Self::Object(object) => fill(object, requests),
            Self::Hub(file, slots) => hub_reads::fill(file, slots, requests),
        }
    }

    fn byte_len(&self) -> u64 {
        match self {
            Self::Object(object) => object.byte_len(),
            Self::Hub(file, _) => file.byte_len(),
        }
    }

    fn version(&self) -> String {
        match self {
            Self::Object(object) => object.version(),
            Self::Hub(file, _) => file.etag().to_owned(),
        }
    }
}

impl Fetched {
    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        let len = self.origin.byte_len();
        let mut rest = Vec::with_capacity(ranges.len());
        for ReadRange { offset, bytes } in ranges {
            let end = offset.saturating_add(bytes.len() as u64);
            if end > len {
                let message = format!("expected at least {end} bytes, found {len}");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
            let held = usize::try_from(*offset).ok().and_then(|start| self.start.get(start..));
            let held = held.unwrap_or_default();
            let here = held.len().min(bytes.len());
            let (start, beyond) = bytes.split_at_mut(here);
            start.copy_from_slice(&held[..here]);
            if !beyond.is_empty() {
                rest.push((*offset + here as u64, beyond));
            }
        }
        if rest.is_empty() { Ok(()) } else { self.origin.fill(plan(rest)) }
    }
}

impl RemoteFile {
    pub(super) fn on_disk(file: FileSource) -> Self {
        Self(Source::Disk(file))
    }

    pub(super) async fn open(service: Arc<Service>, path: Path) -> io::Result<Self> {
        let (object, start) = Object::open(service, path, START).await?;
        let origin = Origin::Object(Arc::new(object));
        Ok(Self(Source::Remote(Fetched { origin, start })))
    }

    pub(super) fn of_hub(file: HubFile, slots: Arc<Slots>) -> io::Result<Self> {
        let mut start = vec![0; file.byte_len().min(START) as usize];
        file.read_exact_at(&mut start, 0)?;
        let origin = Origin::Hub(Box::new(file), slots);
        Ok(Self(Source::Remote(Fetched { origin, start })))
    }

    /// The ETag without quotes, or length and time. Equal for a file of the disk.
    pub(super) fn version(&self) -> String {
        match &self.0 {
            Source::Disk(file) => {
                let changed = file.file().metadata().and_then(|metadata| metadata.modified());
                format!("{} bytes, changed {changed:?}", file.byte_len())
            }
            Source::Remote(fetched) => fetched.origin.version(),
        }
    }
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile")
            .field("version", &self.version())
            .field("byte_len", &self.byte_len())
            .finish_non_exhaustive()
    }
}

impl ReadAt for RemoteFile {
    fn byte_len(&self) -> u64 {
        match &self.0 {
            Source::Disk(file) => file.byte_len(),
            Source::Remote(fetched) => fetched.origin.byte_len(),
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        match &self.0 {
            Source::Disk(file) => file.read_ranges_at(ranges),
            Source::Remote(fetched) => fetched.read_ranges_at(ranges),
        }
    }

    fn requests(&self) -> Option<Requests> {
        match &self.0 {
            Source::Disk(file) => file.requests(),
            Source::Remote(_) => Some(Requests::new(CALL, IN_FLIGHT)),
        }
    }

    fn may_change_unseen(&self) -> bool {
        match &self.0 {
            Source::Disk(file) => file.may_change_unseen(),
            Source::Remote(fetched) => match &fetched.origin {
                Origin::Object(object) => object.may_change_unseen(),
                Origin::Hub(..) => false,
            },
        }
    }

    fn inner(&self) -> Option<&dyn ReadAt> {
        match &self.0 {
            Source::Disk(file) => Some(file),
            Source::Remote(_) => None,
        }
    }
}
