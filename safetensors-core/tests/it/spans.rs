//! The spans of the feature `tracing`: which there are, with how many bytes, and how long they
//! last.

use std::time::Duration;

use safetensors_core::framework::Samples;
use safetensors_testing::framework::Bufs;
use safetensors_testing::process::is_alone;
use safetensors_testing::spans::{Listener, RecordedSpan};

use crate::support::*;

#[test]
fn each_kind_of_work_has_a_span_with_bytes_and_time() {
    // Threads need a subscriber of the whole process.
    if !is_alone(each_kind_of_work_has_a_span_with_bytes_and_time) {
        return;
    }
    let listener = Listener::of_this_process();
    let (_dir, path) = place("model.safetensors");
    let values = TensorBuf::from_vec(vec![1 << 20], vec![1_f32; 1 << 20]).unwrap();
    let tensors = ["a", "b"].map(|name| (name, &values));
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = LoadOptions::new().all_as(Dtype::F64).threads(2);
    let read = checkpoint.read_all(&options).unwrap().remove(0);
    read.convert(Dtype::F16, &Default::default()).unwrap();

    let header = checkpoint.files()[0].safetensors().header();
    for (name, bytes) in [
        ("write", fs::metadata(&path).unwrap().len()),
        ("open", header.data_start()),
        ("read", 2 << 23),
    ] {
        let [recorded] = &listener.named(name)[..] else { panic!("{:?}", listener.named(name)) };
        assert_eq!((recorded.bytes, &recorded.parent), (bytes, &None), "{name}");
        assert!(recorded.time.unwrap() > Duration::ZERO, "{name}");
    }
    let reading = Some(listener.named("read").remove(0).id);
    let (of_read, alone): (Vec<_>, Vec<_>) =
        listener.named("convert").into_iter().partition(|recorded| recorded.parent == reading);
    assert!(
        of_read.len() > 2 && of_read.iter().map(|recorded| recorded.bytes).sum::<u64>() == 2 << 23
    );
    assert!(of_read.iter().all(|recorded| recorded.time.is_some()));
    let [alone] = &alone[..] else { panic!("{alone:?}") };
    assert_eq!((alone.bytes, &alone.parent), (2 << 20, &None));
}

/// Each sample is opened and read by a thread, which works for the span of the program.
#[test]
fn samples_have_spans_like_other_files() {
    if !is_alone(samples_have_spans_like_other_files) {
        return;
    }
    let dir = tempdir().unwrap();
    for i in 0..5_u8 {
        let (path, values) = (dir.path().join(format!("{i}.safetensors")), [i; 1000]);
        let tensors = [("x", TensorView::from_slice(&[1000], &values).unwrap())];
        save(path, tensors, &SaveOptions::new().durable(false)).unwrap();
    }
    let listener = Listener::of_this_process();
    let samples = Samples::<Bufs>::open(dir.path(), ()).unwrap().threads(2);
    let epoch = tracing::debug_span!(target: "safetensors", "epoch");
    epoch.in_scope(|| {
        let each = samples.for_each_batch(samples.shuffled(1), 2, |_| Ok::<(), Error>(()));
        each.unwrap();
    });
    for name in ["open", "read"] {
        let recorded = listener.named(name);
        assert_eq!(recorded.len(), 5, "{name}: {recorded:?}");
        let is_of_epoch =
            |recorded: &RecordedSpan| recorded.parent == epoch.id() && recorded.time.is_some();
        assert!(
            recorded.iter().all(|recorded| is_of_epoch(recorded) && recorded.bytes > 0),
            "{recorded:?}"
        );
    }
    assert!(listener.named("read").iter().all(|recorded| recorded.bytes == 1000));
}
