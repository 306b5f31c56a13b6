//! [`Scratch`]: members of archives, unpacked to a temporary file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Mutex;

use safetensors_core::lock;

use crate::error::{Error, ErrorKind, Result};
use crate::zipped::{Zipped, expect_end};

const PIECE: usize = 1 << 20;

/// One file for all members, made for the first. It has no name, so it is gone even after a crash.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Mutex<Unpacked>);

#[derive(Debug, Default)]
struct Unpacked {
    file: Option<File>,
    len: u64,
    starts: HashMap<usize, u64>,
}

impl Scratch {
    pub(super) fn unpacked(&self, zipped: &Zipped<'_>, member: usize) -> Result<u64> {
        let mut unpacked = lock(&self.0);
        if let Some(&start) = unpacked.starts.get(&member) {
            return Ok(start);
        }
        zipped.check_size(member)?;
        let start = unpacked.len;
        let written = unpacked.append(zipped, member)?;
        unpacked.len += written;
        unpacked.starts.insert(member, start);
        Ok(start)
    }

    pub(super) fn read(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let mut unpacked = lock(&self.0);
        let file = unpacked.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(buf)
    }
}

impl Unpacked {
    fn append(&mut self, zipped: &Zipped<'_>, member: usize) -> Result<u64> {
        let temporary = |source| -> Error {
            ErrorKind::Temporary { directory: std::env::temp_dir(), source }.into()
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile().map_err(temporary)?),
        };
        file.seek(SeekFrom::Start(self.len)).map_err(temporary)?;
        zipped.member(member, |member| {
            let size = member.size();
            let mut written = 0;
            let mut buffer = vec![0; size.clamp(1, PIECE as u64) as usize];
            while written < size {
                let most = (size - written).min(buffer.len() as u64) as usize;
                match member.read(&mut buffer[..most]) {
                    Ok(0) => {
                        let problem = "the member is shorter than it says".into();
                        return Err(ErrorKind::BadArchive { problem }.into());
                    }
                    Ok(read) => {
                        file.write_all(&buffer[..read]).map_err(temporary)?;
                        written += read as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
            expect_end(member)?;
            Ok(written)
        })
    }
}
