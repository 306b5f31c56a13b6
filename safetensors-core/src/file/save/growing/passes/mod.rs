//! [`Passes`]: the limits between the passes of the caller's loop.

#[cfg(test)]
mod tests;

/// In the order of first steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    number: u32,
    /// Whether another tensor had grown twice before, so that this one may come earlier in a pass,
    /// as one in every tenth does.
    is_late: bool,
}

/// The passes so far, each of which appends to a tensor at most once, and always in the same order.
// So a tensor that is appended to twice in a row surely begins a pass. So does one that comes no
// later than the last, if the first pass has shown their order.
#[derive(Debug, Default)]
pub(super) struct Passes {
    ranks: u32,
    /// Whether a tensor was appended to twice.
    has_second: bool,
    last: Option<Rank>,
    /// Since the last append.
    has_added: bool,
    /// Whether a tensor was appended to twice in a row since the last sync.
    has_repeated: bool,
    /// Of one tensor since the last sync.
    new_steps: u64,
}

impl Passes {
    /// Before the next append, returns `true` if a pass ends and a tensor has `every` new steps, or
    /// it probably ends and a tensor has twice that number.
    pub(super) fn is_due(&self, next: Option<Rank>, every: u64) -> bool {
        // The order of the appends shows where a pass ends. A call by which the caller marks it is
        // easily forgotten, and then nothing is synced.
        let (Some(last), Some(next)) = (self.last, next) else { return false };
        let is_repeated = next.number == last.number;
        let is_known = !self.has_repeated && !last.is_late && !next.is_late;
        let is_sure = !self.has_added && (is_repeated || is_known);
        next.number <= last.number
            && (self.new_steps >= every.saturating_mul(2) || is_sure && self.new_steps >= every)
    }

    pub(super) fn append(&mut self, rank: Option<Rank>, new_steps: u64) -> Rank {
        self.has_second |= rank.is_some();
        let rank = rank.unwrap_or_else(|| {
            self.ranks += 1;
            Rank { number: self.ranks, is_late: self.has_second }
        });
        let is_repeated = self.last.is_some_and(|last| last.number == rank.number);
        self.has_repeated |= is_repeated && !self.has_added;
        self.has_added = false;
        self.last = Some(rank);
        self.new_steps = self.new_steps.max(new_steps);
        rank
    }

    pub(super) fn add(&mut self) {
        self.has_added = true;
    }

    pub(super) fn sync(&mut self) {
        self.has_repeated = false;
        self.new_steps = 0;
    }
}
