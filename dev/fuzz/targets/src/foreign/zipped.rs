//! Zip archives.

use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Makes an archive of these members. A name that is already there is skipped, and storages of
/// tensors are never deflated.
pub(super) fn archive<'a>(
    members: impl IntoIterator<Item = (String, &'a [u8])>,
    is_deflated: bool,
) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        let method = match is_deflated && !name.contains("/data/") {
            true => CompressionMethod::Deflated,
            false => CompressionMethod::Stored,
        };
        let options = SimpleFileOptions::default().compression_method(method);
        if archive.start_file(name, options).is_ok() {
            archive.write_all(bytes).unwrap();
        }
    }
    archive.finish().unwrap().into_inner()
}
