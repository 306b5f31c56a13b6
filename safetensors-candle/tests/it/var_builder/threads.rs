//! Several threads that build parts of a model at once.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use safetensors_core::LoadOptions;

use super::spy::{assert_values, backend, backend_with, builder, model, sorted};

#[test]
fn threads_with_separate_layers_get_the_right_values() {
    let model = model(32);
    for limit in [0, 3_000, 30_000, 1 << 30] {
        let (backend, spy) = backend(&sorted(&model));
        let backend = backend.read_ahead(limit);
        let builder = builder(&backend);
        thread::scope(|scope| {
            for part in model.chunks(model.len().div_ceil(4)) {
                let builder = &builder;
                scope.spawn(move || {
                    for (name, len) in part {
                        assert_values(name, &builder.get(*len, name).unwrap());
                    }
                });
            }
        });
        assert_eq!(backend.unused().count(), 0);
        let all: u64 = model.iter().map(|(_, len)| 2 * *len as u64).sum();
        let read = spy.take_read();
        // With a small bound, tensors that were read for a slow thread may be dropped.
        let most = if [0, 1 << 30].contains(&limit) { all } else { 2 * all };
        assert!((all..=most).contains(&read), "{read} bytes for {all}, at most {limit} ahead");
    }
}

#[test]
fn a_thread_waits_for_a_tensor_that_another_one_reads_ahead() {
    let model = model(4);
    let (backend, spy) = backend(&sorted(&model));
    let builder = builder(&backend);
    let get = |i: usize| assert_values(&model[i].0, &builder.get(model[i].1, &model[i].0).unwrap());
    (0..2).for_each(get);
    spy.take_read();
    spy.close();
    thread::scope(|scope| {
        // It reads the first layer ahead, and has to wait.
        let first = scope.spawn(|| get(2));
        spy.wait_for_a_read();
        let second = scope.spawn(|| get(3));
        thread::sleep(std::time::Duration::from_millis(50));
        assert!(!first.is_finished() && !second.is_finished());
        spy.open();
    });
    (4..model.len()).for_each(get);
    // Nothing was read by both.
    let rest: u64 = model[2..].iter().map(|(_, len)| 2 * *len as u64).sum();
    assert_eq!(spy.take_read(), rest);
}

#[test]
fn threads_do_not_wait_for_one_that_fails_or_panics() {
    let model = model(4);
    for panics in [false, true] {
        static FAILS: AtomicBool = AtomicBool::new(false);
        let options = LoadOptions::new().threads(1).progress(move |_| {
            if FAILS.swap(false, Ordering::SeqCst) {
                // Without the message that `panic!` prints.
                let panic = || std::panic::resume_unwind(Box::new("a panic"));
                return if panics { panic() } else { ControlFlow::Break(()) };
            }
            ControlFlow::Continue(())
        });
        let (backend, spy) = backend_with(&sorted(&model), &options);
        let builder = builder(&backend);
        let get = |i: usize| builder.get(model[i].1, &model[i].0);
        (0..2).for_each(|i| assert_values(&model[i].0, &get(i).unwrap()));
        spy.close();
        thread::scope(|scope| {
            let first = scope.spawn(|| get(2));
            spy.wait_for_a_read();
            let second = scope.spawn(|| get(3));
            thread::sleep(std::time::Duration::from_millis(50));
            FAILS.store(true, Ordering::SeqCst);
            spy.open();
            match first.join() {
                Ok(read) => assert!(!panics && read.unwrap_err().to_string().contains("cancelled")),
                Err(panic) => assert!(panics && panic.is::<&str>()),
            }
            assert_values(&model[3].0, &second.join().unwrap().unwrap());
        });
        (2..model.len()).for_each(|i| assert_values(&model[i].0, &get(i).unwrap()));
    }
}
