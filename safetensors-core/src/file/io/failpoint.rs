//! Failing on purpose: steps of saving and editing that can fail call [`hit`].
//!
//! Only in this crate's tests and the fuzz targets.

#[cfg(not(any(test, feature = "__failpoints")))]
#[inline(always)]
pub(crate) fn hit(_step: &'static str) -> std::io::Result<()> {
    Ok(())
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn lacks(_what: &'static str) -> bool {
    false
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_killed() -> bool {
    false
}

#[cfg(any(test, feature = "__failpoints"))]
pub(crate) use armed::hit;
#[cfg(test)]
pub(crate) use armed::{Interrupted, call_at, interrupt_everywhere, is_killed, lacks, without};
#[cfg(any(test, feature = "__failpoints"))]
#[allow(unreachable_pub, reason = "reachable with the feature alone")]
pub use armed::{crash_at, fail_at};

#[cfg(any(test, feature = "__failpoints"))]
#[allow(unreachable_pub, reason = "reachable with the feature alone")]
mod armed {
    use std::cell::RefCell;
    use std::io;

    /// The steps that a test interrupts in its thread.
    struct Armed {
        /// Steps that still succeed.
        left: usize,
        wanted: Interruption,
        reached: Option<&'static str>,
    }

    enum Interruption {
        Failure,
        /// All later ones fail too.
        Crash,
        #[cfg(test)]
        Call(Option<Box<dyn FnOnce()>>),
    }

    thread_local! {
        static ARMED: RefCell<Option<Armed>> = const { RefCell::new(None) };
    }

    #[cfg(test)]
    thread_local! {
        static LACKING: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    /// Fails if a test wants it to.
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
                Interruption::Failure => is_first,
                Interruption::Crash => true,
                #[cfg(test)]
                Interruption::Call(f) => {
                    call = if is_first { f.take() } else { None };
                    false
                }
            }
        });
        // The function may take its own steps, which do not count.
        if let Some(call) = call {
            let armed = ARMED.take();
            call();
            ARMED.set(armed);
        }
        if fails { Err(io::Error::other(format!("interrupted at {step}"))) } else { Ok(()) }
    }

    #[cfg(test)]
    pub(crate) fn is_killed() -> bool {
        let crashed = |it: &Armed| it.reached.is_some() && matches!(it.wanted, Interruption::Crash);
        ARMED.with_borrow(|armed| armed.as_ref().is_some_and(crashed))
    }

    #[cfg(test)]
    pub(crate) fn lacks(what: &'static str) -> bool {
        LACKING.with_borrow(|lacking| lacking.contains(&what))
    }

    /// Runs `f` with its `n`th step of this thread failing, from 0. Returns the step, if `f` has
    /// it.
    #[doc(hidden)]
    pub fn fail_at<T>(n: usize, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        run(n, Interruption::Failure, f)
    }

    /// Like [`fail_at`], but later steps fail too, and nothing is cleaned up.
    #[doc(hidden)]
    pub fn crash_at<T>(n: usize, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        run(n, Interruption::Crash, f)
    }

    #[cfg(test)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Interrupted {
        pub(crate) step: &'static str,
        /// Whether all later steps failed, too.
        pub(crate) killed: bool,
    }

    /// Interrupts an act at each step, first by failing only it, then by killing the process there.
    /// `setup` makes the input, and `check` gets it with the result; at the end of both rounds with
    /// `None`, uninterrupted. Returns the steps.
    #[cfg(test)]
    pub(crate) fn interrupt_everywhere<S, T>(
        mut setup: impl FnMut() -> S,
        mut act: impl FnMut(&S) -> T,
        mut check: impl FnMut(S, Option<Interrupted>, T),
    ) -> Vec<&'static str> {
        let mut steps = Vec::new();
        for killed in [false, true] {
            for n in 0.. {
                let place = setup();
                let (result, step) =
                    if killed { crash_at(n, || act(&place)) } else { fail_at(n, || act(&place)) };
                check(place, step.map(|step| Interrupted { step, killed }), result);
                let Some(step) = step else { break };
                assert!(n < 10_000, "an act without an end: {step}");
                if !killed {
                    steps.push(step);
                }
            }
        }
        steps
    }

    /// Calls `call` before the `n`th step, from 0.
    #[cfg(test)]
    pub(crate) fn call_at<T>(
        n: usize,
        call: impl FnOnce() + 'static,
        f: impl FnOnce() -> T,
    ) -> (T, Option<&'static str>) {
        run(n, Interruption::Call(Some(Box::new(call))), f)
    }

    /// Simulates a system that lacks a feature.
    #[cfg(test)]
    pub(crate) fn without<T>(what: &'static str, f: impl FnOnce() -> T) -> T {
        LACKING.with_borrow_mut(|lacking| lacking.push(what));
        let result = f();
        LACKING.with_borrow_mut(|lacking| _ = lacking.pop());
        result
    }

    fn run<T>(n: usize, wanted: Interruption, f: impl FnOnce() -> T) -> (T, Option<&'static str>) {
        ARMED.set(Some(Armed { left: n, wanted, reached: None }));
        let result = f();
        let reached = ARMED.take().and_then(|armed| armed.reached);
        (result, reached)
    }
}
