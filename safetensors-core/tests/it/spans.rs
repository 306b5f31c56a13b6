//! The spans of the feature `tracing`: which there are, with how many bytes, and how long they
//! last.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, save};
use safetensors_testing::process::is_alone;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// A span, as a subscriber is told of it.
#[derive(Clone, Debug)]
struct Told {
    id: Id,
    name: &'static str,
    parent: Option<Id>,
    bytes: u64,
    begun: Instant,
    /// How long it lasted, once it is closed.
    time: Option<Duration>,
}

/// Keeps all spans.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Told>>>);

impl Listener {
    fn with(&self, id: &Id, f: impl FnOnce(&mut Told)) {
        f(self.0.lock().unwrap().iter_mut().rfind(|told| told.id == *id).unwrap());
    }

    fn named(&self, name: &str) -> Vec<Told> {
        self.0.lock().unwrap().iter().filter(|told| told.name == name).cloned().collect()
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

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Listener {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == "safetensors"
    }

    fn on_new_span(&self, span: &Attributes<'_>, id: &Id, spans: Context<'_, S>) {
        let parent = spans.span(id).unwrap().parent().map(|parent| parent.id());
        let (id, name, begun) = (id.clone(), span.metadata().name(), Instant::now());
        let mut told = Told { id, name, parent, bytes: 0, begun, time: None };
        span.record(&mut told);
        self.0.lock().unwrap().push(told);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.with(id, |told| values.record(told));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.with(&id, |told| told.time = Some(told.begun.elapsed()));
    }
}

#[test]
fn each_kind_of_work_is_told_with_its_bytes_and_its_time() {
    // Threads need a subscriber of the whole process.
    if !is_alone(each_kind_of_work_is_told_with_its_bytes_and_its_time) {
        return;
    }
    let listener = Listener::default();
    let spans = tracing_subscriber::registry().with(listener.clone());
    tracing::subscriber::set_global_default(spans).unwrap();
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
        assert_eq!((told.bytes, &told.parent), (bytes, &None), "{name}");
        assert!(told.time.unwrap() > Duration::ZERO, "{name}");
    }
    let reading = Some(listener.named("read").remove(0).id);
    let (of_read, alone): (Vec<_>, Vec<_>) =
        listener.named("convert").into_iter().partition(|told| told.parent == reading);
    assert!(of_read.len() > 2 && of_read.iter().map(|told| told.bytes).sum::<u64>() == 2 << 23);
    assert!(of_read.iter().all(|told| told.time.is_some()));
    let [alone] = &alone[..] else { panic!("{alone:?}") };
    assert_eq!((alone.bytes, &alone.parent), (2 << 20, &None));
}
