//! [`Budget`]: memory and steps for opening a file. [`Depth`]: the depth of nested values.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Limits;
use crate::error::{ErrorKind, Result};

// A fixed limit alone is reached by a small file as easily as by a large one. An allocator that
// counts is the choice of a program.
// Real memory is at most four times the count, so 16 gives 64.
const MEMORY: (u64, u64) = (16 << 20, 16);
const STEPS: (u64, u64) = (1 << 20, 16);

/// Bytes of memory, and steps, for each of [`Limits::directory_bytes`].
const MEMORY_OF_TEXT: u64 = 32;
const STEPS_OF_TEXT: u64 = 2;

/// Bytes of text for each step.
const STEP: usize = 16;

/// Memory of an entry in a table or list, without its text.
pub(crate) const ENTRY: usize = 128;

const CHUNK: usize = 4096;

const MOST_ADDED: u64 = u64::MAX >> 16;

const DEEPEST: usize = 100;

/// Limits the memory and steps of an open, for all files of a directory or index. Clones share the
/// counts.
///
/// A small file can name a text, list or tensor any number of times. So readers count memory before
/// they take it, and each pass over a list.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    limits: Limits,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    files: AtomicU64,
    file_len: AtomicU64,
    memory: AtomicU64,
    steps: AtomicU64,
}

impl Budget {
    /// Allows nothing until [`grow`](Self::grow) adds a file.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { limits: limits.clone(), counts: Arc::default() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn grow(&self, file_len: u64) {
        add(&self.counts.files, 1);
        add(&self.counts.file_len, file_len);
    }

    pub(crate) fn again(&self) -> Self {
        let Counts { files, file_len, memory, steps } = &*self.counts;
        let [files, file_len, memory, steps] = [files, file_len, memory, steps]
            .map(|count| AtomicU64::new(count.load(Ordering::Relaxed)));
        let counts = Counts { files, file_len, memory, steps };
        Self { limits: self.limits.clone(), counts: Arc::new(counts) }
    }

    /// Call it before bytes are kept or copied.
    pub(crate) fn keep(&self, bytes: usize) -> Result<()> {
        let most = self.limits.directory_bytes.saturating_mul(MEMORY_OF_TEXT);
        self.count(&self.counts.memory, bytes, MEMORY, most, "bytes of memory")
    }

    pub(crate) fn keep_all<T>(&self, count: usize) -> Result<()> {
        self.keep(count.saturating_mul(size_of::<T>()))
    }

    /// Counts bytes as they come: memory grows with present bytes, not requested ones.
    pub(crate) fn read(&self, from: &mut dyn Read, len: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let most = (len - bytes.len() as u64).min(bytes.len().max(CHUNK) as u64);
            let read = (&mut *from).take(most).read_to_end(&mut bytes)?;
            self.keep(read)?;
            if most == 0 || (read as u64) < most {
                return Ok(bytes);
            }
        }
    }

    pub(crate) fn text(&self, text: &str) -> Result<Arc<str>> {
        self.keep(text.len() + ENTRY)?;
        Ok(text.into())
    }

    /// Counts steps, such as one for each value.
    pub(crate) fn work(&self, steps: usize) -> Result<()> {
        let most = self.limits.directory_bytes.saturating_mul(STEPS_OF_TEXT);
        self.count(&self.counts.steps, steps, STEPS, most, "steps")
    }

    pub(crate) fn work_on(&self, text: &str) -> Result<()> {
        self.work(1 + text.len() / STEP)
    }

    fn count(
        &self,
        count: &AtomicU64,
        more: usize,
        (always, each): (u64, u64),
        most: u64,
        what: &'static str,
    ) -> Result<()> {
        let file_len = self.counts.file_len.load(Ordering::Relaxed);
        let most = most.saturating_mul(self.counts.files.load(Ordering::Relaxed));
        let limit = file_len.saturating_mul(each).saturating_add(always).min(most);
        if add(count, more as u64) <= limit {
            Ok(())
        } else {
            Err(ErrorKind::OutOfProportion { what, limit, file_len }.into())
        }
    }
}

/// Returns the sum. No sum of permitted counts overflows.
fn add(count: &AtomicU64, more: u64) -> u64 {
    let more = more.min(MOST_ADDED);
    count.fetch_add(more, Ordering::Relaxed).saturating_add(more)
}

/// Returns the length in JSON.
pub(crate) fn escaped(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        0..b' ' => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    });
    bytes.sum()
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depth(usize);

impl Depth {
    pub(crate) fn deeper(self) -> Result<Self, ErrorKind> {
        if self.0 >= DEEPEST {
            return Err(ErrorKind::NestedTooDeep { limit: DEEPEST });
        }
        Ok(Self(self.0 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_steps_are_in_proportion_to_all_files() {
        let budget = Budget::new(&Limits::default());
        budget.grow(1 << 20);
        budget.keep(32 << 20).unwrap();
        budget.work(17 << 20).unwrap();
        let again = budget.again();
        for budget in [&budget, &again] {
            let error = budget.keep(1).unwrap_err().to_string();
            assert!(error.contains("over 33554432 bytes of memory"), "{error}");
            assert!(budget.work(1).unwrap_err().to_string().contains("over 17825792 steps"));
        }
        let limits = Limits { directory_bytes: 1, ..Limits::default() };
        let small = Budget::new(&limits);
        small.grow(u64::MAX);
        assert!(small.keep(32).is_ok() && small.keep(1).is_err());
        assert!(small.work(2).is_ok() && small.work(1).is_err());
        assert!(small.keep(usize::MAX).is_err() && small.keep(usize::MAX).is_err());
    }

    #[test]
    fn each_file_of_a_directory_adds_to_the_budget_of_all() {
        let budget = Budget::new(&Limits { directory_bytes: 1, ..Limits::default() });
        budget.grow(1 << 20);
        assert!(budget.keep(32).is_ok() && budget.keep(1).is_err());
        budget.grow(1 << 20);
        assert!(budget.keep(31).is_ok() && budget.keep(1).is_err());
    }

    #[test]
    fn nesting_has_one_limit() {
        let mut depth = Depth::default();
        for _ in 0..100 {
            depth = depth.deeper().unwrap();
        }
        assert!(depth.deeper().unwrap_err().to_string().contains("the limit of 100"));
    }
}
