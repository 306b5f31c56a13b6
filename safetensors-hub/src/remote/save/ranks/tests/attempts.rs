//! Attempts that are under way at the same time, or that take the name of an earlier one.

use super::*;

#[test]
fn the_earlier_of_two_attempts_cannot_replace_the_later_one() {
    let store = Arc::new(InMemory::new());
    EARLIER[3](&store);
    for later in ["two", "three"] {
        assert_eq!(save_rank(&store, 0, "one", 2).unwrap(), WAITING);
        assert_eq!(save_rank(&store, 0, later, 3).unwrap(), WAITING);
        save_rank(&store, 1, later, 3).unwrap();
        assert_eq!(fill_of(&store), 3);
        // It has rank 0's mark no longer, but is known to have begun.
        let error = save_rank(&store, 1, "one", 2).unwrap_err();
        assert!(is_superseded(&error), "{error}");
        assert_eq!(fill_of(&store), 3);
        for rank in 0..RANKS {
            save_rank(&store, rank, &format!("after-{later}"), 1).unwrap();
        }
        assert_tidy(&store);
    }
}

#[test]
fn the_later_of_two_attempts_replaces_the_earlier_one() {
    for earlier in EARLIER {
        let store = Arc::new(InMemory::new());
        earlier(&store);
        assert_eq!(save_rank(&store, 0, "one", 2).unwrap(), WAITING);
        assert_eq!(save_rank(&store, 0, "two", 3).unwrap(), WAITING);
        save_rank(&store, 1, "one", 2).unwrap();
        assert_eq!(fill_of(&store), 2);
        save_rank(&store, 1, "two", 3).unwrap();
        assert_eq!(fill_of(&store), 3);
        assert_tidy(&store);
    }
}

/// The earlier attempt is completed when the later one is about to write its index.
#[test]
fn the_earlier_attempt_is_completed_at_the_last_moment() {
    let store = Arc::new(InMemory::new());
    EARLIER[2](&store);
    assert_eq!(save_rank(&store, 0, "one", 2).unwrap(), WAITING);
    assert_eq!(save_rank(&store, 0, "two", 3).unwrap(), WAITING);
    let inner = store.clone();
    let before = move |name: &str, number: usize, _: &InMemory| {
        if (name, number) == ("put", 2) {
            let inner = inner.clone();
            let other = std::thread::spawn(move || save_rank(&inner, 1, "one", 2));
            assert!(matches!(other.join().unwrap().unwrap(), RankSaved::Complete(_)));
        }
        Ok(())
    };
    let racing = Arc::new(Racing::new(store.clone(), before, |_, _, _| Ok(())));
    save_rank(&racing, 1, "two", 3).unwrap();
    assert_eq!(fill_of(&store), 3);
    assert_tidy(&store);
}

#[test]
fn a_rank_that_saves_again_replaces_its_parts() {
    for is_complete in [false, true] {
        let store = Arc::new(InMemory::new());
        assert_eq!(save_rank(&store, 0, "new", 1).unwrap(), WAITING);
        assert_eq!(save_rank(&store, 0, "new", 2).unwrap(), WAITING);
        save_rank(&store, 1, "new", 2).unwrap();
        assert_eq!(fill_of(&store), 2);
        assert_tidy(&store);
        if is_complete {
            let error = save_rank(&store, 1, "new", 3).unwrap_err();
            assert!(self::is_complete(&error), "{error}");
        }
        assert_eq!(fill_of(&store), 2);
    }
}

/// Removes all objects of an attempt, as a save does that is complete.
fn remove(store: &InMemory, attempt: &str) {
    for name in objects(store).into_keys() {
        if name.starts_with(&format!("model.{attempt}.ranks/")) {
            now(store.delete(&Key::from(format!("m/{name}")))).unwrap();
        }
    }
}

/// After a rollback ranks save under the same name again, while a save removes the earlier attempt.
#[test]
fn an_attempt_of_the_same_name_is_another_one() {
    let roll_back = |inner: Arc<InMemory>| {
        remove(&inner, "one");
        assert_eq!(save_rank(&inner, 0, "one", 4).unwrap(), WAITING);
    };
    for is_of_ranks in [false, true] {
        let store = Arc::new(InMemory::new());
        EARLIER[2](&store);
        assert_eq!(save_rank(&store, 0, "one", 2).unwrap(), WAITING);
        if is_of_ranks {
            assert_eq!(save_rank(&store, 0, "two", 3).unwrap(), WAITING);
        }
        let (inner, is_done) = (store.clone(), AtomicUsize::new(0));
        let before = move |name: &str, _: usize, store: &InMemory| {
            let inner = inner.clone();
            let is_first = || is_done.fetch_add(1, Ordering::SeqCst) == 0;
            if name == "delete" && fill_of(store) == 3 && is_first() {
                std::thread::spawn(move || roll_back(inner)).join().unwrap();
            }
            Ok(())
        };
        let racing = Arc::new(Racing::new(store.clone(), before, |_, _, _| Ok(())));
        if is_of_ranks {
            drop(save_rank(&racing, 1, "two", 3).unwrap())
        } else {
            save_whole(&racing, 3, 8)
        }
        assert_eq!(fill_of(&store), 3);
        let saved = save_rank(&store, 1, "one", 4).unwrap();
        assert!(matches!(saved, RankSaved::Complete(_)), "{saved:?}");
        assert_eq!(fill_of(&store), 4);
        assert_tidy(&store);
    }
}

/// An attempt began before another one, whose name an even earlier attempt had.
#[test]
fn the_later_attempt_is_not_taken_for_an_earlier_one_of_its_name() {
    let store = Arc::new(InMemory::new());
    EARLIER[3](&store);
    for attempt in ["one", "two"] {
        assert_eq!(save_rank(&store, 0, attempt, 2).unwrap(), WAITING);
    }
    remove(&store, "one");
    for rank in 0..RANKS {
        save_rank(&store, rank, "one", 3).unwrap();
    }
    let error = save_rank(&store, 1, "two", 2).unwrap_err();
    assert!(is_superseded(&error), "{error}");
    assert_eq!(fill_of(&store), 3);
}
