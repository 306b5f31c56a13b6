//! Huge pages for large buffers.
//!
//! Most of the time of loading from a warm page cache goes into page faults: the kernel has to find and clear every page of the
//! buffer that is read into. With pages of 2 MiB instead of 4 KiB there are 512 times fewer of them. Linux hands them out only
//! where it is asked to, on most systems.

#![allow(unsafe_code, reason = "advice about memory is given by address")]

/// The smallest buffer that is worth it. Advice splits the kernel's record of a mapping, and those are limited (65,530 a
/// process), so small buffers, of which there may be many, get none.
#[cfg(target_os = "linux")]
const WORTH_IT: usize = 4 << 20;

/// Asks for huge pages behind a buffer that was just allocated and is not written to yet. It may be refused: nothing depends on
/// it.
#[cfg(target_os = "linux")]
pub(crate) fn advise(buffer: &mut [u8]) {
    use rustix::mm::{Advice, madvise};
    use rustix::param::page_size;

    if buffer.len() < WORTH_IT {
        return;
    }
    // Whole pages inside the buffer only: what lies around it belongs to others.
    let start = buffer.as_ptr().align_offset(page_size());
    let len = buffer.len().saturating_sub(start) / page_size() * page_size();
    let Some(pages) = buffer.get_mut(start..start + len) else { return };
    // SAFETY: the range is inside one live, exclusively borrowed allocation, and this advice changes how the kernel backs the
    // memory, not what is in it.
    let _ = unsafe { madvise(pages.as_mut_ptr().cast(), pages.len(), Advice::LinuxHugepage) };
}

/// Elsewhere there is no such advice to give.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise(_: &mut [u8]) {}

#[cfg(test)]
mod tests {
    use super::advise;

    #[test]
    fn the_buffer_stays_as_it_is_whatever_its_place_and_size() {
        let mut buffer: Vec<u8> = (0..9 << 20).map(|i| (i % 251) as u8).collect();
        let before = buffer.clone();
        for (start, end) in [(0, 0), (0, 1), (1, 4 << 20), (0, 9 << 20), (4097, (9 << 20) - 1), (3, (4 << 20) + 3)] {
            advise(&mut buffer[start..end]);
        }
        assert!(buffer == before);
    }
}
