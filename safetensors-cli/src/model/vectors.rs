//! Code with the vector instructions of this machine.

use pulp::{Arch, WithSimd};

/// Runs work with the widest vector instructions of this machine.
#[inline(always)]
pub(crate) fn dispatch<W: WithSimd>(work: W) -> W::Output {
    arch().dispatch(work)
}

#[cfg(not(test))]
#[inline(always)]
fn arch() -> Arch {
    Arch::new()
}

#[cfg(test)]
fn arch() -> Arch {
    tests::CHOSEN.get().unwrap_or_default()
}

#[cfg(test)]
pub(crate) use tests::on_each_width;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The instructions that a test chooses for this thread.
        pub(super) static CHOSEN: Cell<Option<Arch>> = const { Cell::new(None) };
    }

    /// Calls `work` with each kind of vectors that this machine has, and without vectors.
    pub(crate) fn on_each_width<R>(mut work: impl FnMut() -> R) -> Vec<R> {
        let mut all = vec![Arch::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(pulp::x86::V3::try_new().map(Arch::V3));
            all.extend(pulp::x86::V4::try_new().map(Arch::V4));
        }
        #[cfg(target_arch = "aarch64")]
        all.extend(pulp::aarch64::Neon::try_new().map(Arch::Neon));
        let run = |arch| {
            CHOSEN.set(Some(arch));
            let result = work();
            CHOSEN.set(None);
            result
        };
        all.into_iter().map(run).collect()
    }
}
