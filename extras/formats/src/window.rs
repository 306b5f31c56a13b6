//! [`Window`]: a range of a file, read like a file.

use std::io;
use std::sync::Arc;

use safetensors_core::ReadAt;
use safetensors_core::io::ReadRange;
use safetensors_core::io::Requests;

/// Bytes read at both ends of a range at once. An archive of a single tensor has all but its
/// elements there.
const AHEAD: u64 = 4 << 10;

#[derive(Debug)]
pub(crate) struct Window {
    source: Arc<dyn ReadAt>,
    start: u64,
    len: u64,
    ahead: Vec<(u64, Vec<u8>)>,
}

impl Window {
    /// `None` if the file ends before `start`.
    pub(crate) fn new(source: &Arc<dyn ReadAt>, start: u64, len: u64) -> Option<Self> {
        let end = start.checked_add(len)?;
        let source = Arc::clone(source);
        (end <= source.byte_len()).then_some(Self { source, start, len, ahead: Vec::new() })
    }

    pub(crate) fn read_ahead(windows: &mut [Self]) -> io::Result<()> {
        let Some(first) = windows.first() else { return Ok(()) };
        let source = Arc::clone(&first.source);
        let mut ranges = Vec::new();
        for Self { len, ahead, .. } in windows.iter_mut() {
            let head = if *len <= 2 * AHEAD { *len } else { AHEAD };
            ahead.push((0, vec![0; head as usize]));
            if head < *len {
                ahead.push((*len - AHEAD, vec![0; AHEAD as usize]));
            }
        }
        for Self { start, ahead, .. } in windows {
            ranges.extend(
                ahead.iter_mut().map(|(at, bytes)| ReadRange { offset: *start + *at, bytes }),
            );
        }
        source.read_ranges_at(&mut ranges)
    }
}

impl ReadAt for Window {
    fn byte_len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= self.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let known =
            self.ahead.iter().find(|(at, bytes)| *at <= offset && end <= *at + bytes.len() as u64);
        match known {
            Some((at, bytes)) => {
                buf.copy_from_slice(&bytes[(offset - at) as usize..(end - at) as usize]);
                Ok(())
            }
            None => self.source.read_exact_at(buf, self.start + offset),
        }
    }

    fn requests(&self) -> Option<Requests> {
        self.source.requests()
    }

    fn check_unchanged(&self) -> io::Result<()> {
        self.source.check_unchanged()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_the_bytes_of_its_range_read_ahead_or_not() {
        let all: Vec<u8> = (0..60_000_u32).map(|i| (i % 251) as u8).collect();
        let file: Arc<dyn ReadAt> = Arc::new(all.clone());
        assert!(
            Window::new(&file, 1, 60_000).is_none() && Window::new(&file, u64::MAX, 2).is_none()
        );
        for (start, len) in [(0, 60_000), (7, 0), (7, 1), (7, 8192), (7, 8193), (59_000, 1000)] {
            let bytes = &all[start as usize..(start + len) as usize];
            let mut windows = vec![Window::new(&file, start, len).unwrap()];
            Window::read_ahead(&mut windows).unwrap();
            windows.push(Window::new(&file, start, len).unwrap());
            for window in windows {
                for at in (0..len).step_by(1 + len as usize / 50) {
                    for end in [at, at + 1, (at + 5000).min(len), len] {
                        let mut part = vec![0; (end - at) as usize];
                        window.read_exact_at(&mut part, at).unwrap();
                        assert!(part == bytes[at as usize..end as usize], "{at}..{end} of {len}");
                    }
                }
                assert!(window.read_exact_at(&mut [0; 2], len.saturating_sub(1)).is_err());
            }
        }
    }
}
