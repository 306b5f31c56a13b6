//! Groups the saves of records by attempt to save an epoch.
// burn's loop asks all three checkpointers each time, so the nth saves of all records belong
// together. A program that calls them in one thread stops at the first error. It must save the
// record that came first again, which begins a new attempt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ThreadId;

use safetensors_core::save::AtomicDirectory;

use super::RecordKind;
use super::manifest::EpochFile;

#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The number of saves that have begun. The first attempt is 1.
    begun: BTreeMap<RecordKind, u64>,
    /// Attempts that run, and failed ones until a later one succeeds.
    all: BTreeMap<u64, Attempt>,
}

#[derive(Debug)]
pub(super) struct Attempt {
    /// The record that was begun first, and its thread.
    first: (RecordKind, ThreadId),
    /// `None` after a failure.
    pub(super) directory: Option<Arc<AtomicDirectory>>,
    /// `None` for a save that failed.
    pub(super) ended: BTreeMap<RecordKind, Option<EpochFile>>,
}

impl Attempt {
    pub(super) fn has_failed(&self) -> bool {
        self.ended.values().any(Option::is_none)
    }
}

impl Attempts {
    /// Returns the number of the attempt; `None` if the attempt before has failed and another
    /// record must begin.
    pub(super) fn begin(
        &mut self,
        part: RecordKind,
        thread: ThreadId,
    ) -> Option<(u64, &mut Attempt)> {
        let mut number = self.begun(part) + 1;
        // The program went on to a later attempt without this record.
        while self.begun_after_failure(number, thread).is_some_and(|(_, begun)| begun > number) {
            number += 1;
        }
        if let Some((first, begun)) = self.begun_after_failure(number - 1, thread)
            && first != part
            && begun < number
        {
            return None;
        }
        self.begun.insert(part, number);
        let attempt = self.all.entry(number).or_insert_with(|| Attempt {
            first: (part, thread),
            directory: None,
            ended: BTreeMap::new(),
        });
        Some((number, attempt))
    }

    fn begun(&self, part: RecordKind) -> u64 {
        self.begun.get(&part).copied().unwrap_or_default()
    }

    /// Returns the first record of an attempt that failed in this thread, and how many of its saves
    /// have begun.
    fn begun_after_failure(&self, number: u64, thread: ThreadId) -> Option<(RecordKind, u64)> {
        let attempt = self.all.get(&number).filter(|attempt| attempt.has_failed())?;
        let (first, its_thread) = attempt.first;
        (its_thread == thread).then(|| (first, self.begun(first)))
    }

    /// Ends the save of a record. A failed attempt gives up its directory, and its room on the
    /// disk.
    pub(super) fn end(&mut self, number: u64, part: RecordKind, entry: Option<EpochFile>) -> Ended {
        let Some(attempt) = self.all.get_mut(&number) else { return Ended::Failed };
        attempt.ended.insert(part, entry);
        // Dropping the directory removes it, once no other record is written into it.
        if attempt.has_failed() {
            attempt.directory = None;
        }
        if attempt.ended.len() < RecordKind::ALL.len() {
            return Ended::Waiting;
        }
        let directory = attempt.directory.take();
        let files = attempt.ended.iter();
        let files = files.map(|(part, entry)| Some((part.file_name().to_owned(), entry.clone()?)));
        match (files.collect(), directory) {
            (Some(files), Some(directory)) => Ended::Complete(files, directory),
            _ => Ended::Failed,
        }
    }

    /// Notes that the epoch was not put in place.
    pub(super) fn fail(&mut self, number: u64) {
        if let Some(attempt) = self.all.get_mut(&number) {
            attempt.ended.values_mut().for_each(|entry| *entry = None);
        }
    }

    /// Forgets this attempt and the failed ones before it. Returns `true` if no other is left.
    pub(super) fn forget(&mut self, number: u64) -> bool {
        // An earlier attempt that failed is superseded. One that is under way may still complete.
        self.all
            .retain(|other, attempt| *other > number || (*other < number && !attempt.has_failed()));
        self.all.is_empty()
    }
}

#[derive(Debug)]
pub(super) enum Ended {
    /// Other records are not saved yet.
    Waiting,
    Complete(BTreeMap<String, EpochFile>, Arc<AtomicDirectory>),
    /// All records have ended, and one has failed.
    Failed,
}
