//! The spans of the feature `tracing`: which there are, with how many bytes, and how long they last.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, save};
use safetensors_testing::process::is_alone;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// A span, as a subscriber is told of it.
#[derive(Clone, Debug)]
struct Told {
    metadata: &'static Metadata<'static>,
    parent: Option<u64>,
    bytes: u64,
    begun: Instant,
    /// How long it lasted, once it is closed.
    time: Option<Duration>,
    handles: usize,
}

/// A subscriber that keeps all spans.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Told>>>);

thread_local! {
    /// The spans that this thread is in.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Listener {
    fn with<T>(&self, id: &Id, f: impl FnOnce(&mut Told) -> T) -> T {
        f(&mut self.0.lock().unwrap()[id.into_u64() as usize - 1])
    }

    fn named(&self, name: &str) -> Vec<Told> {
        let told = self.0.lock().unwrap();
        told.iter().filter(|told| told.metadata.name() == name).cloned().collect()
    }
}

impl Visit for Told {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "bytes" {
            self.bytes = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "safetensors"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let parent = ENTERED.with_borrow(|entered| entered.last().copied());
        let (metadata, begun) = (span.metadata(), Instant::now());
        let mut new = Told { metadata, parent, bytes: 0, begun, time: None, handles: 1 };
        span.record(&mut new);
        let mut told = self.0.lock().unwrap();
        told.push(new);
        Id::from_u64(told.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.with(id, |told| values.record(told));
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.with(id, |told| told.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.with(&id, |told| {
            told.handles -= 1;
            if told.handles == 0 {
                told.time = Some(told.begun.elapsed());
            }
            told.handles == 0
        })
    }

    fn current_span(&self) -> Current {
        match ENTERED.with_borrow(|entered| entered.last().copied()) {
            Some(id) => {
                let id = Id::from_u64(id);
                let metadata = self.with(&id, |told| told.metadata);
                Current::new(id, metadata)
            }
            None => Current::none(),
        }
    }

    fn event(&self, _: &Event<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

#[test]
fn each_kind_of_work_is_told_with_its_bytes_and_its_time() {
    // Threads need a subscriber of the whole process.
    if !is_alone(each_kind_of_work_is_told_with_its_bytes_and_its_time) {
        return;
    }
    let listener = Listener::default();
    tracing::subscriber::set_global_default(listener.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let values = vec![1_f32; 1 << 20];
    let tensors =
        ["a", "b"].map(|name| (name, TensorView::from_slice(&[1 << 20], &values).unwrap()));
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = LoadOptions::new().all_as(Dtype::F64).threads(2);
    let read = checkpoint.read_all(&options).unwrap().remove(0);
    read.convert(Dtype::F16, &Default::default()).unwrap();

    let header = checkpoint.files()[0].safetensors().header();
    for (name, bytes) in [
        ("write", std::fs::metadata(&path).unwrap().len()),
        ("open", header.data_start()),
        ("read", 2 << 23),
    ] {
        let [told] = &listener.named(name)[..] else { panic!("{:?}", listener.named(name)) };
        assert_eq!((told.bytes, told.parent), (bytes, None), "{name}");
        assert!(told.time.unwrap() > Duration::ZERO, "{name}");
    }
    let reading = listener.0.lock().unwrap().iter().position(|told| told.metadata.name() == "read");
    let reading = reading.unwrap() as u64 + 1;
    let (of_read, alone): (Vec<_>, Vec<_>) =
        listener.named("convert").into_iter().partition(|told| told.parent == Some(reading));
    assert!(of_read.len() > 2 && of_read.iter().map(|told| told.bytes).sum::<u64>() == 2 << 23);
    assert!(of_read.iter().all(|told| told.time.is_some()));
    assert_eq!(
        alone.iter().map(|told| (told.bytes, told.parent)).collect::<Vec<_>>(),
        [(2 << 20, None)]
    );
}
