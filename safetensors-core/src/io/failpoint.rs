//! Failing on purpose: each step of saving and editing that can fail announces itself here, so that
//! tests can interrupt it.
//!
//! Outside this crate's own tests and the repository's fuzz targets nothing of it remains.

/// A step that is about to be taken. Fails if a test wants it to.
#[cfg(not(any(test, feature = "__failpoints")))]
#[inline(always)]
pub(crate) fn hit(_step: &'static str) -> std::io::Result<()> {
    Ok(())
}

/// Whether a test wants the system to lack something that not every system has.
#[cfg(not(any(test, feature = "__failpoints")))]
#[inline(always)]
pub(crate) fn lacks(_what: &'static str) -> bool {
    false
}

#[cfg(test)]
pub(crate) use armed::without;
#[cfg(any(test, feature = "__failpoints"))]
#[allow(unreachable_pub, reason = "reachable with the feature alone")]
pub use armed::{crash_at, fail_at};
#[cfg(any(test, feature = "__failpoints"))]
pub(crate) use armed::{hit, lacks};

#[cfg(any(test, feature = "__failpoints"))]
#[allow(unreachable_pub, reason = "reachable with the feature alone")]
mod armed {
    use std::cell::Cell;
    use std::io;

    /// What a test wants of the steps that its thread takes. Other threads are left alone.
    #[derive(Clone, Copy)]
    struct Armed {
        /// The steps that still succeed.
        left: usize,
        /// Whether those after the failing one fail too, as after the end of the process.
        for_good: bool,
        failed: Option<&'static str>,
    }

    thread_local! {
        static ARMED: Cell<Option<Armed>> = const { Cell::new(None) };
        static LACKS: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// A step that is about to be taken. Fails if a test wants it to.
    pub(crate) fn hit(step: &'static str) -> io::Result<()> {
        let Some(mut armed) = ARMED.get() else { return Ok(()) };
        let fails = if armed.failed.is_some() { armed.for_good } else { armed.left == 0 };
        armed.left = armed.left.saturating_sub(1);
        if fails {
            armed.failed.get_or_insert(step);
        }
        ARMED.set(Some(armed));
        if fails { Err(io::Error::other(format!("interrupted at {step}"))) } else { Ok(()) }
    }

    /// Runs `f` with its `n`th step (from 0) failing, and says which step that was; `None` if there
    /// were not so many.
    ///
    /// Only the steps of this thread count.
    pub fn fail_at<T>(n: usize, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        run(Armed { left: n, for_good: false, failed: None }, f)
    }

    /// Like [`fail_at`], but every step after the `n`th fails too: what would put things right does
    /// not happen either.
    pub fn crash_at<T>(n: usize, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        run(Armed { left: n, for_good: true, failed: None }, f)
    }

    /// Whether the system is to lack this.
    pub(crate) fn lacks(what: &'static str) -> bool {
        LACKS.get() == Some(what)
    }

    /// Runs `f` as on a system that lacks something. Only this thread is concerned.
    #[cfg(test)]
    pub(crate) fn without<T>(what: &'static str, f: impl FnOnce() -> T) -> T {
        LACKS.set(Some(what));
        let result = f();
        LACKS.set(None);
        result
    }

    fn run<T>(armed: Armed, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        ARMED.set(Some(armed));
        let result = f();
        let failed = ARMED.take().and_then(|armed| armed.failed);
        (result, failed)
    }
}
