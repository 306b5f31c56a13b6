//! The spans of the feature `tracing`, as a subscriber receives them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// A span, as a subscriber receives it.
#[derive(Clone, Debug)]
pub struct RecordedSpan {
    /// Its number.
    pub id: Id,
    name: &'static str,
    /// The span that it belongs to.
    pub parent: Option<Id>,
    /// Its field of that name.
    pub bytes: u64,
    /// Its field of that name, if it has one.
    pub address: Option<String>,
    begun: Instant,
    /// How long it lasted, once it is closed.
    pub time: Option<Duration>,
}

/// Keeps all spans of this library.
#[derive(Clone, Debug, Default)]
pub struct Listener(Arc<Mutex<Vec<RecordedSpan>>>);

impl Listener {
    /// Makes a listener to all threads of the process. There can be only one.
    ///
    /// # Panics
    ///
    /// If there is one.
    pub fn of_this_process() -> Self {
        let listener = Self::default();
        let spans = tracing_subscriber::registry().with(listener.clone());
        tracing::subscriber::set_global_default(spans).unwrap();
        listener
    }

    fn with(&self, id: &Id, f: impl FnOnce(&mut RecordedSpan)) {
        f(self.0.lock().unwrap().iter_mut().rfind(|recorded| recorded.id == *id).unwrap());
    }

    /// Returns the spans of a name, in the order in which they began.
    pub fn named(&self, name: &str) -> Vec<RecordedSpan> {
        self.0.lock().unwrap().iter().filter(|recorded| recorded.name == name).cloned().collect()
    }
}

impl Visit for RecordedSpan {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "bytes" {
            self.bytes = value;
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "address" {
            self.address = Some(value.to_owned());
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
        let mut recorded =
            RecordedSpan { id, name, parent, bytes: 0, address: None, begun, time: None };
        span.record(&mut recorded);
        self.0.lock().unwrap().push(recorded);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.with(id, |recorded| values.record(recorded));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.with(&id, |recorded| recorded.time = Some(recorded.begun.elapsed()));
    }
}
