//! [`Spool`]: an unnamed file for compressed differences of unknown sizes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use safetensors_core::lock;
use safetensors_core::save::Sink;
use safetensors_core::{Dtype, ErrorKind, TensorSource};

use crate::error::{Error, Result};
use crate::frame::PIECE;

/// One thread appends, others read later. The system removes the file when it is closed.
#[derive(Clone)]
pub(crate) struct Spool {
    file: Arc<Mutex<File>>,
    len: u64,
}

impl Spool {
    pub(crate) fn create_in(directory: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(directory);
        let file = file.map_err(|error| Error::from(error).in_path(directory))?;
        Ok(Self { file: Arc::new(Mutex::new(file)), len: 0 })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn since(&self, start: u64) -> Result<Spooled> {
        let bytes = self.len - start;
        let too_large = |_| Error::from(ErrorKind::TooLargeForMemory { bytes });
        Ok(Spooled {
            file: Arc::clone(&self.file),
            start,
            shape: [usize::try_from(bytes).map_err(too_large)?],
        })
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = lock(&self.file).write(bytes)?;
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) struct Spooled {
    file: Arc<Mutex<File>>,
    start: u64,
    shape: [usize; 1],
}

impl Spooled {
    pub(crate) fn len(&self) -> u64 {
        self.shape[0] as u64
    }
}

impl TensorSource for Spooled {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let mut buffer = vec![0; PIECE.min(self.shape[0])];
        for start in (0..self.shape[0]).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(self.shape[0] - start)];
            let mut file = lock(&self.file);
            file.seek(SeekFrom::Start(self.start + start as u64))?;
            file.read_exact(piece)?;
            drop(file);
            sink(piece)?;
        }
        Ok(())
    }
}
