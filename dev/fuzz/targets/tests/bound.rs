//! Opening costs as much as the file is long: for files of every format that share, repeat, nest,
//! refer back and claim, the peak of the memory and the steps follow the length of the files.
//!
//! ```text
//! cargo test -p safetensors-fuzz --test bound
//! FORMAT=GGUF cargo test -p safetensors-fuzz --test bound -- --ignored --nocapture
//! ```
//!
//! The second prints the worst files of each format, or of `FORMAT`, also of large ones. This is a
//! separate program, because it counts the allocations of all of its threads.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cap::Cap;
use peak_alloc::PeakAlloc;
use safetensors_fuzz::foreign::{FORMATS, Files, Format, Part};
use safetensors_fuzz::input::Input;

/// `Cap` counts all that is allocated, `PeakAlloc` the most at a time.
#[global_allocator]
static ALLOCATOR: Cap<PeakAlloc> = Cap::new(PeakAlloc, usize::MAX);

const MIB: usize = 1 << 20;

/// Returns the memory that may be taken for files of this length.
fn most_memory(len: usize) -> usize {
    64 * MIB + 64 * len
}

/// Returns the bytes that may be allocated one after another, which count the steps.
fn most_steps(len: usize) -> usize {
    256 * MIB + 1024 * len
}

/// The cost of opening files.
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
    fn new(format: &Format, parts: &[Part], files: &Files) -> Self {
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

    /// Returns the peak as a part of the limit.
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

/// Returns the parts of a single kind that make files of about this length.
fn sized(format: &Format, what: &'static str, len: usize, target: usize) -> (Part, Files) {
    let each = if format.shares(what) { 8 } else { len + format.each };
    let mut part = Part { what, count: (target / each).max(1), len };
    let mut files = (format.write)(&[part]);
    for _ in 0..3 {
        let found = files.len();
        if (target * 3 / 4..=target * 5 / 4).contains(&found) {
            break;
        }
        let count = (part.count as u128 * target as u128 / found.max(1) as u128) as usize;
        part.count = count.clamp(1, target.min(400_000));
        files = (format.write)(&[part]);
    }
    (part, files)
}

/// Returns the lengths of names and values that may be worst for files of this length.
fn lens(format: &Format, what: &str, target: usize) -> [usize; 3] {
    match format.shares(what) {
        true => [8, target / 8, target / 2],
        false => [1, target.isqrt(), target / 3],
    }
}

/// Opens files with one kind of part each, of these lengths, until `then` wants no larger ones.
fn alone(
    format: &Format,
    kinds: &'static str,
    targets: &[usize],
    mut then: impl FnMut(Measured) -> bool,
) {
    for what in Format::kinds(kinds) {
        let mut before = 0;
        for position in 0..3 {
            for &target in targets {
                let len = lens(format, what, target)[position];
                let (part, files) = sized(format, what, len, target);
                // The length means nothing to some kinds.
                let is_same = std::mem::replace(&mut before, files.len()) == files.len();
                if is_same || !then(Measured::new(format, &[part], &files)) {
                    break;
                }
            }
        }
    }
}

/// Opens files with random parts. They are the same on every platform.
fn mixed(format: &Format, count: usize, mut then: impl FnMut(Measured) -> bool) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for number in 0..count {
        let choices: [u8; 32] = [(); 32].map(|()| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        });
        let most = match number % 500 {
            0 => 32 << 10,
            1..5 => 4 << 10,
            _ => 256,
        };
        let parts = format.random(&mut Input::new(&choices), most);
        then(Measured::new(format, &parts, &(format.write)(&parts)));
    }
}

/// Returns all formats, or `FORMAT` alone.
fn formats() -> impl Iterator<Item = &'static Format> {
    let wanted = std::env::var("FORMAT").ok();
    FORMATS.iter().filter(move |format| wanted.as_ref().is_none_or(|name| name == format.name))
}

/// The length of files with many references to one long value. A reader that counts only one of
/// them takes far more than it may.
const LARGE: usize = 128 << 10;

/// Files of each format: every kind of part alone, shared parts in large files, and mixtures.
/// A process measures one format, because it counts what all of its threads allocate.
#[test]
fn opening_takes_memory_and_steps_in_proportion_to_the_files() {
    if std::env::var_os("FORMAT").is_some() {
        formats().for_each(check);
        return;
    }
    let rest = Mutex::new(FORMATS.iter());
    let next = || rest.lock().unwrap().next();
    let measure_rest = || {
        while let Some(format) = next() {
            let test = "opening_takes_memory_and_steps_in_proportion_to_the_files";
            let mut process = Command::new(std::env::current_exe().unwrap());
            let output = process.args(["--exact", test]).env("FORMAT", format.name).output();
            let output = output.unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{}: {printed}", format.name);
            assert!(printed.contains("1 passed"), "{}: {printed}", format.name);
        }
    };
    std::thread::scope(|scope| {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        (0..count).for_each(|_| drop(scope.spawn(measure_rest)));
    });
}

fn check(format: &Format) {
    let (mut wrong, mut opened) = (Vec::new(), 0);
    let mut check = |measured: Measured| {
        opened += usize::from(measured.outcome.is_ok());
        if !measured.is_fine() {
            wrong.push(measured.to_string());
        }
        true
    };
    alone(format, format.repeated, &[12 << 10], &mut check);
    for what in Format::kinds(format.shared) {
        let (part, files) = sized(format, what, LARGE / 2, LARGE);
        check(Measured::new(format, &[part], &files));
        // About the number of references that are allowed.
        let part = Part { count: 125, ..part };
        check(Measured::new(format, &[part], &(format.write)(&[part])));
    }
    mixed(format, 1500, check);
    // The others are refused for their content.
    assert!(opened > 100, "{}: only {opened} are read", format.name);
    assert!(wrong.is_empty(), "{} files take too much:\n{}", wrong.len(), wrong.join("\n"));
}

/// Prints the worst files of each format, or of `FORMAT` alone, up to 1 MiB.
#[test]
#[ignore = "takes minutes"]
fn prints_the_worst_files_of_each_format() {
    println!(
        "| format | files | over the limit | worst share of the limit | by | worst peak / file from \
         128 KiB on | longest |"
    );
    for format in formats() {
        let (mut files, mut wrong, mut slow, mut before) = (0, 0, 0.0_f64, 0);
        let (mut worst, mut large) = (None::<Measured>, 0.0_f64);
        let mut count = |measured: Measured| {
            files += 1;
            wrong += usize::from(!measured.is_fine());
            slow = slow.max(measured.took.as_secs_f64());
            if measured.parts.len() == 1 && !measured.is_fine() {
                println!("over the limit: {measured}");
            } else if measured.took.as_secs() >= 4 {
                println!("slow: {measured}");
            }
            if measured.len >= 128 << 10 {
                large = large.max(measured.peak as f64 / measured.len as f64);
            }
            // Memory that grows faster than the file may take all of the memory next.
            let ratio = measured.peak / measured.len;
            let by = if ratio > 2 * before { 64 } else { 8 };
            before = ratio;
            let is_small = measured.took.as_secs() < 4 && measured.peak * by < 6000 * MIB;
            if worst.as_ref().is_none_or(|worst| measured.share() > worst.share()) {
                worst = Some(measured);
            }
            is_small
        };
        for kinds in [format.repeated, format.shared] {
            alone(format, kinds, &[16 << 10, 128 << 10, 1 << 20], &mut count);
        }
        mixed(format, 500, count);
        let worst = worst.unwrap();
        let kinds: Vec<_> = worst.parts.iter().map(|part| part.what).collect();
        println!(
            "| {} | {files} | {wrong} | {:.2} | {}: {} KiB take {} MiB | {large:.0} | {slow:.1} s |",
            format.name,
            worst.share(),
            kinds.join(", "),
            worst.len >> 10,
            worst.peak / MIB,
        );
    }
}
