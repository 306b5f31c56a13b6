//! Reading ahead, and the errors, panics and threads of reads in the background.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::slots::Slots;
use super::{Script, cache, cache_by, cache_with, experts, get};
use crate::file::load::LoadOptions;
use crate::format::error::ErrorKind;
use crate::format::parallel::lock;

/// Waits for threads in the background.
#[track_caller]
fn wait_until(mut is_done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_done() {
        assert!(started.elapsed() < Duration::from_secs(20), "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_list_longer_than_the_budget_is_read_once_and_in_order() {
    for threads in [1, 3] {
        let (cache, script) = cache_with(80, &LoadOptions::new().threads(threads));
        cache.read_ahead(experts(0..40)).unwrap();
        wait_until(|| cache.stats().bytes_read == 80);
        // The rest waits until a slice is asked for.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(script.reads(), 5);
        for expert in 0..40 {
            get(&cache, expert);
            assert!(cache.stats().bytes_kept <= 80);
        }
        assert_eq!(script.reads(), 40);
        assert!(cache.stats().hits >= 5);
    }
}

#[test]
fn a_remote_source_gets_requests_for_many_slices_at_once() {
    let script = Script { concurrency: Some(6), ..Script::default() };
    let (cache, script) = cache_by(script, 1 << 10, &LoadOptions::new());
    *lock(&script.is_closed) = true;
    cache.read_ahead(experts(0..40)).unwrap();
    wait_until(|| script.reads() == 6);
    script.open();
    wait_until(|| cache.stats().bytes_read == 640);
    (0..40).for_each(|expert| get(&cache, expert));
    assert_eq!(cache.stats().hits, 40);
}

#[test]
fn a_requested_slice_is_not_read_ahead_again() {
    let (cache, script) = cache_with(48, &LoadOptions::new().threads(1));
    *lock(&script.is_closed) = true;
    cache.read_ahead(experts([0, 1, 2, 3, 4])).unwrap();
    wait_until(|| script.reads() == 1);
    // While the first is read, the program overtakes.
    std::thread::scope(|scope| {
        scope.spawn(|| get(&cache, 1));
        wait_until(|| script.reads() == 2);
        script.open();
    });
    get(&cache, 0);
    (2..5).for_each(|expert| get(&cache, expert));
    assert_eq!(script.reads(), 5);
    assert_eq!(cache.stats().bytes_read, 80);
}

#[test]
fn another_list_replaces_the_rest_of_the_first() {
    let (cache, script) = cache(32);
    cache.read_ahead(experts([0, 1, 2])).unwrap();
    wait_until(|| cache.stats().bytes_read == 32);
    // A guess that was wrong makes room for the next one. A slice that is in both stays.
    cache.read_ahead(experts([1, 5])).unwrap();
    wait_until(|| cache.stats().bytes_read == 48);
    get(&cache, 1);
    get(&cache, 5);
    assert_eq!((cache.stats().hits, script.reads()), (2, 3));
    get(&cache, 2);
    assert_eq!(cache.stats().misses, 1);
}

#[test]
fn a_wrong_guess_is_dropped_before_requested_slices() {
    let (cache, script) = cache(48);
    get(&cache, 7);
    cache.read_ahead(experts([0])).unwrap();
    wait_until(|| cache.stats().bytes_read == 32);
    cache.read_ahead(experts([])).unwrap();
    [8, 9, 7].iter().for_each(|&expert| get(&cache, expert));
    assert_eq!((cache.stats().hits, script.reads()), (1, 4));
}

#[test]
fn a_read_that_another_list_overtakes_is_a_wrong_guess() {
    let (cache, script) = cache_with(32, &LoadOptions::new().threads(1));
    *lock(&script.is_closed) = true;
    cache.read_ahead(experts([0])).unwrap();
    wait_until(|| script.reads() == 1);
    cache.read_ahead(experts([1, 2])).unwrap();
    script.open();
    // Both have room, because the first makes way.
    wait_until(|| cache.stats().bytes_read == 48);
    [1, 2].iter().for_each(|&expert| get(&cache, expert));
    assert_eq!((cache.stats().hits, script.reads()), (2, 3));
}

#[test]
fn a_read_that_both_lists_have_is_kept_for_the_second() {
    let (cache, script) = cache_with(32, &LoadOptions::new().threads(1));
    *lock(&script.is_closed) = true;
    cache.read_ahead(experts([0])).unwrap();
    wait_until(|| script.reads() == 1);
    cache.read_ahead(experts([1, 0, 2])).unwrap();
    script.open();
    wait_until(|| cache.stats().bytes_read == 32);
    [1, 0].iter().for_each(|&expert| get(&cache, expert));
    assert_eq!(cache.stats().hits, 2);
}

#[test]
fn a_caller_who_waits_for_a_read_finds_it_after_another_list() {
    let (cache, _) = cache(48);
    let [asked, waited, listed, next] =
        [0, 1, 2, 3].map(|expert| cache.reader.key("experts", (expert,)).unwrap());
    let mut slots = Slots::new(48);
    assert!(slots.begin(&asked));
    slots.finish(&asked, Some(Ok(Arc::new(()))));
    slots.list(vec![waited.clone()]);
    assert!(slots.begin_listed().is_some());
    slots.list(vec![listed.clone(), next.clone()]);
    assert!(slots.take(&waited, false).is_none());
    slots.finish(&waited, Some(Ok(Arc::new(()))));
    for key in [listed, next] {
        assert!(slots.begin_listed().is_some_and(|begun| begun == key));
        slots.finish(&key, Some(Ok(Arc::new(()))));
    }
    assert!(slots.take(&waited, true).is_some_and(|found| found.is_ok()));
    assert!(slots.take(&asked, false).is_none());
}

#[test]
fn the_last_of_the_list_makes_room_for_a_requested_slice() {
    // A slice that is listed twice has its first place.
    for list in [&[0, 1, 2][..], &[0, 1, 2, 0]] {
        let (cache, script) = cache_with(48, &LoadOptions::new().threads(1));
        cache.read_ahead(experts([2, 0])).unwrap();
        wait_until(|| cache.stats().bytes_read == 32);
        cache.read_ahead(experts(list.iter().copied())).unwrap();
        wait_until(|| cache.stats().bytes_read == 48);
        [9, 0, 1].iter().for_each(|&expert| get(&cache, expert));
        assert_eq!((cache.stats().hits, script.reads()), (2, 4));
    }
}

#[test]
fn an_error_is_not_kept_and_an_error_of_the_background_is_not_lost() {
    let (cache, script) = cache(1 << 10);
    script.is_failing.store(true, Ordering::SeqCst);
    let error = cache.get("experts", (3,)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("experts"), Some("scripted")));
    assert_eq!((cache.stats().bytes_kept, cache.stats().bytes_read), (0, 0));
    let reads = script.reads();
    cache.read_ahead(experts([4])).unwrap();
    wait_until(|| script.reads() > reads && cache.stats().bytes_kept == 0);

    script.is_failing.store(false, Ordering::SeqCst);
    get(&cache, 3);
    // Another list does not lose the error.
    cache.read_ahead(experts([4, 5])).unwrap();
    wait_until(|| cache.stats().bytes_kept == 32);
    let error = cache.get("experts", (4,)).unwrap_err();
    assert!(error.to_string().contains("of the source"), "{error}");
    get(&cache, 4);
}

#[test]
fn a_panic_of_a_read_leaves_the_slice_to_others() {
    let (cache, script) = cache_with(16, &LoadOptions::new().threads(1));
    for _ in 0..3 {
        script.panics.store(true, Ordering::SeqCst);
        let panic = catch_unwind(AssertUnwindSafe(|| get(&cache, 3))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the source"));
    }
    get(&cache, 3);
    let reads = script.reads();
    script.panics.store(true, Ordering::SeqCst);
    cache.read_ahead(experts([4])).unwrap();
    wait_until(|| script.reads() > reads);
    get(&cache, 4);
    // The thread goes on.
    cache.read_ahead(experts([5])).unwrap();
    wait_until(|| cache.stats().bytes_read == 48);
    get(&cache, 5);
    assert_eq!((cache.stats().bytes_kept, cache.stats().hits), (16, 1));
}

#[test]
fn a_dropped_cache_stops_reading() {
    let (cache, script) = cache(1 << 10);
    *lock(&script.is_closed) = true;
    cache.read_ahead(experts(0..40)).unwrap();
    wait_until(|| script.reads() == 2);
    let reader = cache.reader.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(cache));
        wait_until(|| lock(&reader.slots).is_closed);
        script.open();
    });
    drop(reader);
    // The threads have ended, and dropped the source.
    assert_eq!((script.reads(), Arc::strong_count(&script)), (2, 1));
}
