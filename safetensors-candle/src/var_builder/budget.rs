//! [`Budget`]: how many bytes may be read before the model asks for them.

use safetensors_core::Dtype;

/// How much a byte that was read in vain counts against the requested ones.
const PENALTY: u64 = 8;

/// Counts, by dtype, the bytes that a model asks for and the bytes that are read ahead.
// The bytes ahead are at most the limit, and with the dropped ones at most the requested bytes. So
// a model causes at most twice the reading that it needs. Skipping more than an eighth of the bytes
// ahead ends reading ahead.
//
// If a read fails, all its tensors count as dropped, and the requested one is read again: only that
// exceeds the bound.
//
// Each dtype has its own budget: a model that asks for norms as F32 shows nothing about its BF16
// weights.
#[derive(Debug, Default)]
pub(super) struct Budget {
    tallies: Vec<(Dtype, Tally)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    asked: u64,
    /// Bytes that are ahead or being read ahead.
    ahead: u64,
    dropped: u64,
}

impl Budget {
    pub(super) fn ask(&mut self, dtype: Dtype, bytes: u64) {
        let tally = self.tally(dtype);
        tally.asked = tally.asked.saturating_add(bytes);
    }

    /// Counts a tensor that is going to be read ahead.
    pub(super) fn reserve(&mut self, dtype: Dtype, bytes: u64) {
        self.tally(dtype).ahead += bytes;
    }

    /// Counts a tensor that is handed out, or dropped.
    pub(super) fn settle(&mut self, dtype: Dtype, bytes: u64) {
        let tally = self.tally(dtype);
        tally.ahead = tally.ahead.saturating_sub(bytes);
    }

    pub(super) fn read_in_vain(&mut self, dtype: Dtype, bytes: u64) {
        let tally = self.tally(dtype);
        tally.dropped = tally.dropped.saturating_add(bytes);
    }

    pub(super) fn room(&mut self, dtype: Dtype, limit: u64) -> u64 {
        let ahead: u64 = self.tallies.iter().map(|(_, tally)| tally.ahead).sum();
        let tally = self.tally(dtype);
        let earned = tally.asked.saturating_sub(tally.dropped.saturating_mul(PENALTY));
        earned.saturating_sub(tally.ahead).min(limit.saturating_sub(ahead))
    }

    pub(super) fn asked(&self) -> u64 {
        self.tallies.iter().fold(0, |sum, (_, tally)| sum.saturating_add(tally.asked))
    }

    fn tally(&mut self, dtype: Dtype) -> &mut Tally {
        let known = self.tallies.iter().position(|(other, _)| *other == dtype);
        let place = known.unwrap_or_else(|| {
            self.tallies.push((dtype, Tally::default()));
            self.tallies.len() - 1
        });
        &mut self.tallies[place].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_at_most_the_limit_and_the_requested_bytes() {
        let mut budget = Budget::default();
        let dtype = Dtype::BF16;
        assert_eq!(budget.room(dtype, 100), 0);
        budget.ask(dtype, 30);
        assert_eq!((budget.room(dtype, 100), budget.room(dtype, 20)), (30, 20));
        budget.reserve(dtype, 30);
        assert_eq!(budget.room(dtype, 100), 0);
        // The tensors that were read ahead are asked for.
        budget.ask(dtype, 30);
        budget.settle(dtype, 30);
        assert_eq!(budget.room(dtype, 100), 60);
        budget.ask(dtype, 1000);
        assert_eq!(budget.room(dtype, 100), 100);
    }

    #[test]
    fn unused_reads_end_reading_ahead() {
        let mut budget = Budget::default();
        let dtype = Dtype::BF16;
        budget.ask(dtype, 100);
        budget.reserve(dtype, 20);
        budget.settle(dtype, 20);
        budget.read_in_vain(dtype, 20);
        assert_eq!(budget.room(dtype, 1000), 0);
        budget.ask(dtype, 80);
        assert_eq!(budget.room(dtype, 1000), 20);
    }

    #[test]
    fn dtypes_share_the_limit_only() {
        let mut budget = Budget::default();
        budget.ask(Dtype::BF16, 100);
        assert_eq!(budget.room(Dtype::F32, 100), 0);
        budget.ask(Dtype::F32, 10);
        budget.reserve(Dtype::BF16, 95);
        assert_eq!((budget.room(Dtype::F32, 100), budget.room(Dtype::BF16, 1000)), (5, 5));
        assert_eq!(budget.asked(), 110);
    }
}
