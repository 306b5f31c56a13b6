//! What is opened costs what it weighs: for files of every format that share, repeat, nest, refer
//! back and claim, the peak of the memory and the steps follow the length of the files.
//!
//! ```text
//! cargo test -p safetensors-fuzz --test bound
//! cargo test -p safetensors-fuzz --test bound -- --ignored --nocapture [FORMAT]
//! ```
//!
//! The second prints a table of the worst files of each format, also of large ones. A program of its
//! own, because it counts what all of its threads allocate.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use cap::Cap;
use peak_alloc::PeakAlloc;
use safetensors_fuzz::foreign::{FORMATS, Files, Format, Part};
use safetensors_fuzz::input::Input;

/// `Cap` counts all that is allocated, `PeakAlloc` the most at a time.
#[global_allocator]
static ALLOCATOR: Cap<PeakAlloc> = Cap::new(PeakAlloc, usize::MAX);

const MIB: usize = 1 << 20;

/// The memory that may be taken for files of this length.
fn most_memory(len: usize) -> usize {
    64 * MIB + 64 * len
}

/// The bytes that may be allocated one after another, which count the steps.
fn most_steps(len: usize) -> usize {
    256 * MIB + 512 * len
}

/// What it took to open files.
struct Measured {
    format: &'static str,
    parts: Vec<Part>,
    len: usize,
    peak: usize,
    allocated: usize,
    took: Duration,
    /// The error, or a panic.
    outcome: Result<(), String>,
    has_panicked: bool,
}

impl Measured {
    fn new(format: &Format, parts: &[Part]) -> Self {
        Self::of(format, parts, &(format.write)(parts))
    }

    fn of(format: &Format, parts: &[Part], files: &Files) -> Self {
        let (store, path) = (files.store(), files.path);
        let (before, allocated) = (PeakAlloc.current_usage(), ALLOCATOR.total_allocated());
        PeakAlloc.reset_peak_usage();
        let start = Instant::now();
        let opened = catch_unwind(AssertUnwindSafe(|| (format.open)(store, path)));
        Self {
            format: format.name,
            parts: parts.to_vec(),
            len: files.len(),
            peak: PeakAlloc.peak_usage() - before,
            allocated: ALLOCATOR.total_allocated() - allocated,
            took: start.elapsed(),
            has_panicked: opened.is_err(),
            outcome: opened.unwrap_or_else(|_| Err("a panic".into())),
        }
    }

    fn is_fine(&self) -> bool {
        !self.has_panicked
            && self.peak <= most_memory(self.len)
            && self.allocated <= most_steps(self.len)
    }

    /// The peak as a part of the limit.
    fn share(&self) -> f64 {
        self.peak as f64 / most_memory(self.len) as f64
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [peak, allocated, len] =
            [self.peak, self.allocated, self.len].map(|bytes| bytes as f64 / MIB as f64);
        let parts = self.parts.iter().map(|it| format!("{} ({} x {})", it.what, it.count, it.len));
        write!(
            f,
            "{}: {}: {len:.3} MiB take {peak:.1} MiB ({:.0} times), allocate {allocated:.1} MiB \
             ({:.0} times), {:.1} s: {:.120}",
            self.format,
            parts.collect::<Vec<_>>().join(", "),
            peak / len,
            allocated / len,
            self.took.as_secs_f64(),
            self.outcome.as_ref().err().map_or("opened", |error| error)
        )
    }
}

/// The parts of one kind that make files of about this length.
fn sized(format: &Format, what: &'static str, len: usize, target: usize) -> (Part, Files) {
    let each = if format.shared.contains(&what) { 8 } else { len + 8 };
    let mut part = Part { what, count: (target / each).max(1), len };
    let mut files = (format.write)(&[part]);
    for _ in 0..3 {
        let found = files.len();
        if (target * 3 / 4..=target * 5 / 4).contains(&found) {
            break;
        }
        let count = (part.count as u128 * target as u128 / found.max(1) as u128) as usize;
        part.count = count.clamp(1, 400_000);
        files = (format.write)(&[part]);
    }
    (part, files)
}

/// The lengths of names and values that may be worst for files of this length.
fn lens(format: &Format, what: &str, target: usize) -> Vec<usize> {
    match format.shared.contains(&what) {
        true => vec![8, target / 8, target / 2],
        false => vec![1, target.isqrt(), target / 4],
    }
}

/// Every kind of part by itself, in files of these lengths. `then` says whether larger ones of the
/// kind are measured, too.
fn alone(format: &Format, targets: &[usize], mut then: impl FnMut(Measured) -> bool) {
    for what in format.repeated.iter().chain(format.shared) {
        for position in 0..3 {
            for &target in targets {
                let len = lens(format, what, target)[position];
                let (part, files) = sized(format, what, len, target);
                if !then(Measured::of(format, &[part], &files)) {
                    break;
                }
            }
        }
    }
}

/// Parts at random. The same on every platform.
fn mixed(format: &Format, count: usize, mut then: impl FnMut(Measured)) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for number in 0..count {
        let choices: [u8; 32] = [(); 32].map(|()| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        });
        let most = match number % 100 {
            0 => 200 << 10,
            1..10 => 8 << 10,
            _ => 512,
        };
        let parts = format.random(&mut Input::new(&choices), most);
        then(Measured::new(format, &parts));
    }
}

/// Files of each format: all kinds of parts by themselves, and a few thousand mixtures.
#[test]
fn what_is_opened_costs_what_it_weighs() {
    let mut wrong = Vec::new();
    for format in FORMATS {
        let mut check = |measured: Measured| {
            if !measured.is_fine() {
                wrong.push(measured.to_string());
            }
        };
        alone(format, &[2 << 10, 48 << 10], |measured| {
            check(measured);
            true
        });
        mixed(format, 2000, check);
    }
    assert!(wrong.is_empty(), "{} files take too much:\n{}", wrong.len(), wrong.join("\n"));
}

/// Some files of each format are read, so that the others are refused for what they are.
#[test]
fn files_of_every_format_are_read() {
    for format in FORMATS {
        println!("{}: none: {:?}", format.name, Measured::new(format, &[]).outcome);
        for what in format.repeated.iter().chain(format.shared) {
            let m = Measured::new(format, &[Part { what, count: 2, len: 16 }]);
            println!("{}: {what}: {:?}", format.name, m.outcome);
        }
    }
    for format in FORMATS {
        let mut opened = 0;
        mixed(format, 100, |measured| opened += usize::from(measured.outcome.is_ok()));
        assert!(opened > 0, "{}: none of 100 is read", format.name);
    }
}

/// Prints the worst files, of up to 4 MiB.
#[test]
#[ignore = "takes minutes"]
fn table() {
    let wanted = std::env::var("FORMAT").ok();
    let mut rows = Vec::new();
    for format in FORMATS.iter().filter(|it| wanted.as_ref().is_none_or(|name| name == it.name)) {
        let (mut files, mut wrong, mut ratio_before) = (0, 0, 0);
        let (mut worst, mut large, mut slow) = (None::<Measured>, None::<(f64, usize)>, 0.0_f64);
        let mut count = |measured: Measured| {
            files += 1;
            wrong += usize::from(!measured.is_fine());
            // Four times the length may take sixteen times as much.
            let by = if measured.peak / 2 / measured.len > ratio_before { 64 } else { 8 };
            ratio_before = measured.peak / measured.len;
            let is_small = measured.took.as_secs() < 3 && measured.peak * by < 6000 * MIB;
            if measured.parts.len() == 1 && (!measured.is_fine() || measured.took.as_secs() >= 3) {
                println!("{measured}");
            }
            let ratio = measured.peak as f64 / measured.len as f64;
            if measured.len >= 200 << 10 && large.is_none_or(|(before, _)| ratio > before) {
                large = Some((ratio, measured.len));
            }
            slow = slow.max(measured.took.as_secs_f64());
            if worst.as_ref().is_none_or(|worst| measured.share() > worst.share()) {
                worst = Some(measured);
            }
            is_small
        };
        alone(format, &[4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20], &mut count);
        mixed(format, 1000, |measured| _ = count(measured));
        let (worst, (ratio, len)) = (worst.unwrap(), large.unwrap_or_default());
        rows.push(format!(
            "| {} | {files} | {wrong} | {:.2} | {} of {} KiB take {:.0} MiB | {ratio:.0} at {} KiB | {slow:.1} s |",
            format.name,
            worst.share(),
            worst.parts.iter().map(|part| part.what).collect::<Vec<_>>().join(", "),
            worst.len >> 10,
            worst.peak as f64 / MIB as f64,
            len >> 10,
        ));
        println!("{}", rows.last().unwrap());
    }
    println!("| format | files | over the limit | worst share of the limit | of | peak / file from 200 KiB on | longest |");
    println!("|---|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{row}"));
}
