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

/// Whether a test wants to be without something that not every system has.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn lacks(_what: &'static str) -> bool {
    false
}

#[cfg(any(test, feature = "__failpoints"))]
pub(crate) use armed::hit;
#[cfg(test)]
pub(crate) use armed::{call_at, lacks, without};
#[cfg(any(test, feature = "__failpoints"))]
#[allow(unreachable_pub, reason = "reachable with the feature alone")]
pub use armed::{crash_at, fail_at};

#[cfg(any(test, feature = "__failpoints"))]
#[allow(unreachable_pub, reason = "reachable with the feature alone")]
mod armed {
    use std::cell::RefCell;
    use std::io;

    /// What a test wants of the steps that its thread takes. Other threads are left alone.
    struct Armed {
        /// The steps that still succeed.
        left: usize,
        wanted: Wanted,
        reached: Option<&'static str>,
    }

    /// What becomes of the step that is reached.
    enum Wanted {
        /// It fails.
        Failure,
        /// It fails, and so do all after it, as after the end of the process.
        Crash,
        /// Something else happens before it.
        #[cfg(test)]
        Call(Option<Box<dyn FnOnce()>>),
    }

    thread_local! {
        static ARMED: RefCell<Option<Armed>> = const { RefCell::new(None) };
    }

    #[cfg(test)]
    thread_local! {
        /// What the thread is to do without.
        static LACKING: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
    }

    /// A step that is about to be taken. Fails if a test wants it to.
    pub(crate) fn hit(step: &'static str) -> io::Result<()> {
        #[cfg_attr(not(test), expect(unused_mut, reason = "only tests call something"))]
        let mut call: Option<Box<dyn FnOnce()>> = None;
        let fails = ARMED.with_borrow_mut(|armed| {
            let Some(armed) = armed else { return false };
            if armed.left > 0 {
                armed.left -= 1;
                return false;
            }
            let is_first = armed.reached.is_none();
            armed.reached.get_or_insert(step);
            match &mut armed.wanted {
                Wanted::Failure => is_first,
                Wanted::Crash => true,
                #[cfg(test)]
                Wanted::Call(f) => {
                    call = if is_first { f.take() } else { None };
                    false
                }
            }
        });
        // It may take steps of its own.
        if let Some(call) = call {
            let armed = ARMED.take();
            call();
            ARMED.set(armed);
        }
        if fails { Err(io::Error::other(format!("interrupted at {step}"))) } else { Ok(()) }
    }

    /// Whether a test wants to be without something that not every system has.
    #[cfg(test)]
    pub(crate) fn lacks(what: &'static str) -> bool {
        LACKING.get() == Some(what)
    }

    /// Runs `f` with its `n`th step (from 0) failing, and says which step that was; `None` if there
    /// were not so many.
    ///
    /// Only the steps of this thread count.
    pub fn fail_at<T>(n: usize, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        run(n, Wanted::Failure, f)
    }

    /// Like [`fail_at`], but every step after the `n`th fails too: what would put things right does
    /// not happen either.
    pub fn crash_at<T>(n: usize, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        run(n, Wanted::Crash, f)
    }

    /// Runs `f`, and `call` just before its `n`th step (from 0).
    #[cfg(test)]
    pub(crate) fn call_at<T>(
        n: usize,
        call: impl FnOnce() + 'static,
        f: impl FnOnce() -> T,
    ) -> (T, Option<&'static str>) {
        run(n, Wanted::Call(Some(Box::new(call))), f)
    }

    /// Runs `f` in a system that lacks something.
    #[cfg(test)]
    pub(crate) fn without<T>(what: &'static str, f: impl FnOnce() -> T) -> T {
        LACKING.set(Some(what));
        let result = f();
        LACKING.set(None);
        result
    }

    fn run<T>(n: usize, wanted: Wanted, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        ARMED.set(Some(Armed { left: n, wanted, reached: None }));
        let result = f();
        let reached = ARMED.take().and_then(|armed| armed.reached);
        (result, reached)
    }
}
