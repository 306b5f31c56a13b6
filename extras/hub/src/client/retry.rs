//! [`Attempts`]: decides when to repeat a failed request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cache::unique;
use crate::error::{Error, Result, check_stop};

/// Unless the server asks for a pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// By `Retry-After`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Between checks of `stop` during a pause.
pub(crate) const GLANCE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) enum Failure {
    Final(Error),
    Passing { error: Error, wait: Option<Duration> },
    Unreached(Error),
    Expired(Error),
}

impl Failure {
    pub(super) fn passing(error: impl Into<Error>) -> Self {
        Self::Passing { error: error.into(), wait: None }
    }

    pub(super) fn map(self, change: impl FnOnce(Error) -> Error) -> Self {
        match self {
            Self::Final(error) => Self::Final(change(error)),
            Self::Expired(error) => Self::Expired(change(error)),
            Self::Unreached(error) => Self::Unreached(change(error)),
            Self::Passing { error, wait } => Self::Passing { error: change(error), wait },
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) retries: u32,
    /// Before the first repetition. It doubles.
    pub(super) pause: Duration,
    pub(super) connect_timeout: Duration,
}

pub(super) struct Attempts<'a> {
    patience: Patience,
    failed: u32,
    begin: Instant,
    /// A server has answered at any time. Then only the last retry ends the work.
    was_reached: &'a AtomicBool,
    stop: &'a AtomicBool,
}

impl<'a> Attempts<'a> {
    /// `was_reached` turns true when a server answers. `stop` ends pauses.
    pub(super) fn new(
        patience: Patience,
        was_reached: &'a AtomicBool,
        stop: &'a AtomicBool,
    ) -> Self {
        Self { patience, failed: 0, begin: Instant::now(), was_reached, stop }
    }

    pub(super) fn run<T>(mut self, request: impl Fn() -> Result<T, Failure>) -> Result<T> {
        loop {
            match request() {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.pause(failure)?,
            }
        }
    }

    pub(super) fn forgive(&mut self) {
        self.failed = self.failed.saturating_sub(1);
    }

    pub(super) fn pause(&mut self, failure: Failure) -> Result<()> {
        let (error, wait) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Passing { error, wait } => (error, wait),
            Failure::Expired(error) | Failure::Unreached(error) => (error, None),
        };
        if self.failed >= self.patience.retries || wait.is_some_and(|wait| wait > LONGEST_WAIT) {
            return Err(error);
        }
        let own = self.patience.pause.saturating_mul(1 << self.failed.min(16)).min(LONGEST_PAUSE);
        let pause = wait.unwrap_or_default().max(own.mul_f64(random_part()));
        let was_reached = self.was_reached.load(Ordering::Relaxed);
        if !was_reached && self.begin.elapsed() + pause > self.patience.connect_timeout {
            return Err(error);
        }
        self.failed += 1;
        let end = Instant::now() + pause;
        loop {
            check_stop(self.stop)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(GLANCE));
        }
    }
}

/// From 0.5 to 1, so that clients that failed together do not return together.
fn random_part() -> f64 {
    0.5 + f64::from(unique::number()) / f64::from(u32::MAX) / 2.0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::ErrorKind;

    static REACHED: AtomicBool = AtomicBool::new(true);

    fn patience(retries: u32) -> Patience {
        let pause = Duration::from_micros(1);
        Patience { retries, pause, connect_timeout: Duration::from_secs(1) }
    }

    fn passing(wait: Option<Duration>) -> Failure {
        Failure::Passing { error: ErrorKind::FileNotFound.into(), wait }
    }

    #[test]
    fn passing_failures_are_tried_again_so_often() {
        let (stop, count) = (AtomicBool::new(false), Cell::new(0));
        let fail = || -> Result<(), _> {
            count.set(count.get() + 1);
            Err(passing(None))
        };
        Attempts::new(patience(3), &REACHED, &stop).run(fail).unwrap_err();
        assert_eq!(count.get(), 4);
        let last = || (count.get() == 5).then_some(()).ok_or_else(|| fail().unwrap_err());
        Attempts::new(patience(3), &REACHED, &stop).run(last).unwrap();
    }

    #[test]
    fn a_wait_that_is_too_long_and_a_stop_end_it() {
        let stop = AtomicBool::new(false);
        let begin = Instant::now();
        let long = passing(Some(Duration::from_secs(3600)));
        Attempts::new(patience(3), &REACHED, &stop).pause(long).unwrap_err();
        let short = Duration::from_millis(20);
        Attempts::new(patience(3), &REACHED, &stop).pause(passing(Some(short))).unwrap();
        assert!((short..Duration::from_secs(5)).contains(&begin.elapsed()));
        stop.store(true, Ordering::Relaxed);
        let error = Attempts::new(patience(3), &REACHED, &stop).pause(passing(None)).unwrap_err();
        assert!(matches!(error.kind(), safetensors_core::ErrorKind::Cancelled));
    }

    #[test]
    fn an_unreachable_server_is_soon_abandoned() {
        let stop = AtomicBool::new(false);
        let pause = Duration::from_millis(50);
        let patience = Patience { pause, connect_timeout: 4 * pause, ..patience(6) };
        let attempts = |was_reached: bool| {
            let (count, was_reached) = (Cell::new(0), AtomicBool::new(was_reached));
            let request = || -> Result<(), _> {
                count.set(count.get() + 1);
                Err(Failure::Unreached(ErrorKind::FileNotFound.into()))
            };
            Attempts::new(patience, &was_reached, &stop).run(request).unwrap_err();
            count.get()
        };
        // The pauses are up to 50 and 100 ms; a third one of at least 100 ms is too long. They may
        // last longer on a busy machine.
        assert!((2..=4).contains(&attempts(false)));
        assert_eq!(attempts(true), 7, "a server that was reached once has all retries");
    }

    #[test]
    fn pauses_are_random_but_bounded() {
        let parts: Vec<f64> = (0..1000).map(|_| random_part()).collect();
        assert!(parts.iter().all(|part| (0.5..=1.0).contains(part)));
        assert!(parts.iter().any(|part| *part < 0.6) && parts.iter().any(|part| *part > 0.9));
    }
}
