//! Data sets of files: their order, batches, and how far reading runs ahead.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{SampleBatch, Samples};
use crate::checkpoint::store::{FileKind, MemoryFile, MemoryStore, Store, StoreEntry};
use crate::file::load::{LoadOptions, QuantizedWeights};
use crate::file::save::{SaveOptions, serialize};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Mismatch, Result};
use crate::format::tensor::{TensorBuf, TensorView};
use crate::framework::testing::Bufs;

/// A store that counts the files that were opened.
struct Counting {
    files: MemoryStore,
    opened: AtomicUsize,
}

impl Store for Counting {
    type File = MemoryFile<Vec<u8>>;

    fn open(&self, path: &Path) -> Result<Self::File> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.files.open(path)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        self.files.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        self.files.list(directory)
    }
}

fn file(value: u16, shape: &[usize]) -> Vec<u8> {
    let values = value.to_le_bytes().repeat(shape.iter().product());
    let tensors = [("x", TensorView::new(Dtype::U16, shape, &values).unwrap())];
    let label = value as i8;
    let label = [("label", TensorView::from_slice(&[], std::slice::from_ref(&label)).unwrap())];
    let options = SaveOptions::new().metadata([("number", value.to_string())]);
    serialize(tensors.into_iter().chain(label), &options).unwrap()
}

fn samples(count: u16) -> (Arc<Counting>, Samples<Bufs, Arc<Counting>>) {
    let files = (0..count).map(|i| (format!("set/{i:03}.safetensors"), file(i, &[2, 3])));
    let mut files = MemoryStore::from_iter(files);
    files.insert("set/notes.txt", b"none".to_vec());
    files.insert("set/.hidden.safetensors", b"none".to_vec());
    files.insert("set/.below/x.safetensors", b"none".to_vec());
    files.insert("set/run.safetensors.synced/00000001.safetensors", b"none".to_vec());
    let store = Arc::new(Counting { files, opened: AtomicUsize::new(0) });
    (store.clone(), Samples::open_in(store, "set", ()).unwrap())
}

#[test]
fn samples_are_the_files_of_a_directory_by_name() {
    let (store, samples) = samples(12);
    assert_eq!((samples.len(), samples.is_empty()), (12, false));
    assert_eq!(samples.path(11), Some(Path::new("set/011.safetensors")));
    assert_eq!(store.opened.load(Ordering::SeqCst), 0);
    let sample = samples.get(7).unwrap();
    assert_eq!(sample.metadata["number"], "7");
    assert_eq!(sample.tensors["x"].as_slice::<u16>().unwrap(), [7; 6]);
    // The framework has no I8.
    assert_eq!(sample.tensors["label"].as_slice::<i16>().unwrap(), [7]);
    let error = samples.get(12).unwrap_err();
    assert!(error.to_string().ends_with("there is no sample 12 among 12"), "{error}");
    assert!(Samples::<Bufs>::open("there/is/none", ()).is_err());
}

#[test]
fn samples_in_subdirectories_are_found() {
    let names = ["set/cat/1", "set/0", "set/dog/far/2", "set/cat/0", "set/z"];
    let files = names.map(|name| (format!("{name}.safetensors"), file(1, &[2])));
    let samples = Samples::<Bufs, _>::open_in(MemoryStore::from_iter(files), "set", ()).unwrap();
    let paths = (0..samples.len()).filter_map(|i| samples.path(i)?.to_str());
    let expected = ["set/0", "set/cat/0", "set/cat/1", "set/dog/far/2", "set/z"];
    assert!(paths.eq(expected.map(|name| format!("{name}.safetensors"))));
    assert_eq!(samples.get(3).unwrap().metadata["number"], "1");

    // Not for ever, where a directory has itself below it.
    let deep = format!("{}x.safetensors", "d/".repeat(16));
    let store = MemoryStore::from_iter([(deep, file(1, &[2]))]);
    let error = Samples::<Bufs, _>::open_in(store, "", ()).unwrap_err();
    assert!(error.to_string().contains("more than 16 directories deep"), "{error}");
}

#[test]
fn some_tensors_of_each_sample_are_read_or_none() {
    let (store, samples) = samples(3);
    assert_eq!(samples.metadata(2).unwrap()["number"], "2");
    assert!(samples.metadata(3).is_err());
    assert_eq!(store.opened.load(Ordering::SeqCst), 1);

    let labels = samples.only(["label"]);
    let batches = labels.for_each_batch(0..3, 3, |batch| {
        assert!(batch.tensors.keys().eq(["label"]));
        assert_eq!(batch.tensors["label"].as_slice::<i16>().unwrap(), [0, 1, 2]);
        Ok::<(), Error>(())
    });
    batches.unwrap();
    let error = labels.only(["lable"]).get(1).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
    assert_eq!(
        (error.file(), error.similar()),
        (Some("set/001.safetensors"), &["label".into()][..])
    );

    let (_, samples) = self::samples(3);
    let mut seen = Vec::new();
    let metadata = samples.only([""; 0]).for_each(0..3, |_, sample| {
        assert!(sample.tensors.is_empty());
        seen.push(sample.metadata["number"].clone());
        Ok::<(), Error>(())
    });
    metadata.unwrap();
    assert_eq!(seen, ["0", "1", "2"]);
}

#[test]
fn the_seed_decides_the_order() {
    let (_, samples) = samples(100);
    let order = samples.shuffled(1);
    assert_eq!(order, samples.shuffled(1));
    assert_ne!(order, samples.shuffled(2));
    let mut sorted = order.clone();
    sorted.sort();
    assert_eq!(sorted, Vec::from_iter(0..100));
    // The documentation promises the order.
    assert_eq!(order[..6], [22, 96, 24, 79, 63, 57]);
    let mut seen = Vec::new();
    let taken = samples.threads(4).prefetch(3).for_each(order.clone(), |position, sample| {
        assert_eq!(sample.metadata["number"], position.to_string());
        seen.push(position);
        Ok::<(), Error>(())
    });
    taken.unwrap();
    assert_eq!(seen, order);
}

#[test]
fn reading_runs_ahead_within_the_prefetch_limit() {
    for (threads, prefetch) in [(1, 1), (4, 1), (4, 5), (2, 100)] {
        let (store, samples) = samples(40);
        let samples = samples.threads(threads).prefetch(prefetch);
        let mut taken = 0;
        let each = samples.for_each(0..40, |_, _| {
            std::thread::sleep(std::time::Duration::from_micros(200));
            let opened = store.opened.load(Ordering::SeqCst);
            assert!(opened <= taken + prefetch, "{threads} {prefetch}: {opened} {taken}");
            taken += 1;
            Ok::<(), Error>(())
        });
        each.unwrap();
        assert_eq!(taken, 40);
    }
}

#[test]
fn batches_are_stacked_and_the_last_has_the_rest() {
    let (_, samples) = samples(10);
    let mut batches: Vec<SampleBatch<_>> = Vec::new();
    let order = samples.shuffled(3);
    let all = samples.for_each_batch(order.clone(), 4, |batch| {
        batches.push(batch);
        Ok::<(), Error>(())
    });
    all.unwrap();
    assert_eq!(batches.iter().map(|b| b.positions.len()).collect::<Vec<_>>(), [4, 4, 2]);
    let positions: Vec<_> = batches.iter().flat_map(|b| b.positions.clone()).collect();
    assert_eq!(positions, order);
    for SampleBatch { tensors, metadata, positions } in &batches {
        assert_eq!(tensors["x"].shape(), [positions.len(), 2, 3]);
        assert_eq!(tensors["label"].shape(), [positions.len()]);
        let x = tensors["x"].as_slice::<u16>().unwrap();
        for (i, &position) in positions.iter().enumerate() {
            assert_eq!(x[i * 6..][..6], [position as u16; 6]);
            assert_eq!(metadata[i]["number"], position.to_string());
        }
    }
    // Nothing in, nothing out; a size of 0 is a batch for each sample.
    samples.for_each_batch([], 4, |_| Err(Error::from(ErrorKind::Cancelled))).unwrap();
    let mut count = 0;
    let each = samples.for_each_batch([1, 1], 0, |_| {
        count += 1;
        Ok::<(), Error>(())
    });
    each.unwrap();
    assert_eq!(count, 2);
}

#[test]
fn unlike_samples_are_not_stacked() {
    let other =
        serialize([("y", TensorView::from_slice(&[1], &[1_u8]).unwrap())], &SaveOptions::new());
    let files = [("a", file(1, &[2])), ("b", file(2, &[3])), ("c", other.unwrap())];
    let store =
        MemoryStore::from_iter(files.map(|(name, file)| (format!("{name}.safetensors"), file)));
    let samples = Samples::<Bufs, _>::open_in(store, "", ()).unwrap();
    let stacked =
        |order: [usize; 2]| samples.for_each_batch(order, 2, |_| Ok::<(), Error>(())).unwrap_err();
    let error = stacked([0, 1]);
    assert_eq!(error.file(), Some("b.safetensors"));
    assert!(error.to_string().ends_with("\"x\" should have shape [2], found [3]"), "{error}");
    let error = stacked([0, 2]);
    let ErrorKind::Mismatches { mismatches } = error.kind() else { panic!("{error}") };
    let name = |name: &str| name.to_owned();
    let expected = [
        Mismatch::Missing { name: name("label") },
        Mismatch::Missing { name: name("x") },
        Mismatch::Extra { name: name("y") },
    ];
    assert_eq!(mismatches[..], expected);
}

#[test]
fn a_failure_ends_the_work() {
    let (store, samples) = samples(100);
    let samples = samples.threads(4).prefetch(4);
    let error = samples.for_each([0, 1, 100, 2], |position, _| {
        assert!(position < 2);
        Ok::<(), Error>(())
    });
    assert!(error.unwrap_err().to_string().contains("no sample 100"));
    let before = store.opened.load(Ordering::SeqCst);
    let stop = |_, _| Err(Error::from(ErrorKind::Cancelled));
    assert!(matches!(samples.for_each(0..100, stop).unwrap_err().kind(), ErrorKind::Cancelled));
    assert!(store.opened.load(Ordering::SeqCst) - before <= 8);
    // A panic continues in the caller, and no thread waits for ever.
    let panics = || {
        samples.for_each(0..100, |_, _| -> Result<()> { std::panic::panic_any("of the caller") })
    };
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the caller"));
    let tensors: BTreeMap<_, _> = samples.get(5).unwrap().tensors;
    assert_eq!(tensors.len(), 2);
}

/// As [`load`](crate::framework::load) returns them.
#[test]
fn samples_have_all_names_and_no_applied_scales() {
    let weight = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    let half = 0.5_f32.to_le_bytes();
    let scales = TensorView::new(Dtype::F32, &[1, 1], &half).unwrap();
    let tied = SaveOptions::new().metadata([("head", "w")]);
    let file = serialize([("w", weight), ("w_scale_inv", scales)], &tied).unwrap();
    let store = MemoryStore::from_iter([("a.safetensors", file)]);
    let options = LoadOptions::new().floats_as(Dtype::F32);
    let options = options.quantized(QuantizedWeights::Numbers);
    let samples = Samples::<Bufs, _>::open_in(store, "", ()).unwrap().load_options(options);
    let check = |tensors: &BTreeMap<String, Arc<TensorBuf>>| {
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["head", "w"]);
        for tensor in tensors.values() {
            assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.5, 1.0]);
        }
    };
    check(&samples.get(0).unwrap().tensors);
    let batches = samples.for_each_batch([0], 1, |batch| {
        check(&batch.tensors);
        Ok::<(), Error>(())
    });
    batches.unwrap();
}
