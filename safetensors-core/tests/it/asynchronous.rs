//! Checkpoints with files that are read asynchronously: the same tensors, errors and conversions as
//! of files in memory, with few requests.

use std::io;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Waker};

use safetensors_core::checkpoint::store::{AsyncFile, AsyncStore};
use safetensors_core::io::AsyncReadAt;
use safetensors_core::load::QuantizedWeights;
use safetensors_testing::asynchronous::{RemoteFile, Server, block_on};

use crate::support::*;

/// All that a checkpoint has, in its order.
fn all<S>(checkpoint: &Checkpoint<S>) -> Vec<LazyTensor<'_, S>> {
    checkpoint.tensors().collect()
}

/// A tensor of bytes that count, each distinct from its neighbours.
fn counting(dtype: Dtype, elements: usize) -> TensorBuf {
    let len = elements * dtype.bits() as usize / 8;
    let bytes: Vec<u8> = match dtype {
        Dtype::BOOL => (0..len).map(|i| (i % 3 == 0).into()).collect(),
        _ => (0..len).map(|i| (i * 7 % 251) as u8).collect(),
    };
    TensorBuf::from_view(&TensorView::new(dtype, &[elements / 8, 8], &bytes).unwrap()).unwrap()
}

fn file(tensors: &[(&str, TensorBuf)]) -> Vec<u8> {
    serialize(tensors.iter().map(|(name, buf)| (*name, buf)), &SaveOptions::new()).unwrap()
}

/// Small requests, so that everything takes several.
fn server(files: Vec<(&str, Vec<u8>)>) -> Arc<Server> {
    Arc::new(Server::new(files).requests(512, 3))
}

/// Two shards and their index, in `gpt`; the second one has an alias of `a`.
fn sharded() -> Vec<(&'static str, Vec<u8>)> {
    let index = r#"{"metadata": {"total_size": 20000, "tied": "a"}, "weight_map":
        {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}"#;
    let one = [("a", counting(Dtype::F32, 1000))];
    let two = [("b", counting(Dtype::BF16, 4000)), ("c", counting(Dtype::I64, 2000))];
    vec![
        ("gpt/model.safetensors.index.json", index.into()),
        ("gpt/one.safetensors", file(&one)),
        ("gpt/two.safetensors", file(&two)),
    ]
}

/// The bytes of a tensor, or the text of the error.
fn outcome(result: Result<TensorBuf, Error>) -> Result<(Dtype, Vec<usize>, Vec<u8>), String> {
    let outcome = |buf: TensorBuf| (buf.dtype(), buf.shape().to_vec(), buf.bytes().to_vec());
    result.map(outcome).map_err(|error| error.to_string())
}

#[test]
fn every_dtype_is_loaded_and_converted_as_from_memory() {
    let names: Vec<_> = Dtype::ALL.iter().map(|dtype| dtype.to_string()).collect();
    let tensors: Vec<_> = names
        .iter()
        .zip(Dtype::ALL)
        .map(|(name, dtype)| (&**name, counting(*dtype, 800)))
        .collect();
    let bytes = file(&tensors);
    let here = Checkpoint::from_source(bytes.clone(), "all.safetensors").unwrap();
    let store = server(vec![("all.safetensors", bytes)]).store();
    let there =
        block_on(Checkpoint::open_async(&store, "all.safetensors", &Limits::default())).unwrap();
    for options in [
        LoadOptions::new(),
        LoadOptions::new().floats_as(Dtype::F32),
        LoadOptions::new().all_as(Dtype::BF16),
    ] {
        for (here, there) in here.tensors().zip(there.tensors()) {
            let loaded = block_on(store.load(&[there], &options)).map(|mut bufs| bufs.remove(0));
            assert_eq!(outcome(loaded), outcome(here.read_with(&options)), "{}", here.name());
        }
    }
    let loaded = block_on(store.load(&all(&there), &LoadOptions::new())).unwrap();
    let expected = here.read_all(&LoadOptions::new()).unwrap();
    assert!(loaded.iter().zip(&expected).all(|(a, b)| a.bytes() == b.bytes()));
}

#[test]
fn opening_fetches_headers_and_a_load_only_its_tensors() {
    let files = sharded();
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let server = server(files.clone());
    let store = server.store();
    let there = block_on(Checkpoint::open_async(&store, "gpt", &Limits::default())).unwrap();
    let log = server.take_log();
    // The index, and the first bytes of each shard.
    let paths = ["model.safetensors", "model.safetensors.index.json", "one.safetensors"];
    assert_eq!(log.opened[..3], paths.map(|name| Path::new("gpt").join(name)));
    assert_eq!((log.opened.len(), log.most), (4, 2), "both shards at once");
    assert!(log.byte_len() < 3 * 512 && total > 28_000);

    let here = Checkpoint::open_in(MemoryStore::from_iter(files), "gpt", &Limits::default());
    let here = here.unwrap();
    let tied = there.tensor("tied").unwrap();
    let loaded = block_on(store.load(&[tied], &LoadOptions::new())).unwrap();
    assert_eq!(loaded[0].bytes(), here.tensor("a").unwrap().read().unwrap().bytes());
    let log = server.take_log();
    assert!((3500..=4000).contains(&log.byte_len()), "{log:?}");
    assert_eq!(log.most, 3, "as many at once as the source wants");
    assert!(log.ranges.iter().all(|(_, range)| range.end - range.start <= 512));

    // A column, through announced runs.
    let column = |checkpoint: &Checkpoint<AsyncFile<RemoteFile>>| {
        checkpoint.tensor("c")?.slice((100..200, 3))?.read()
    };
    let loaded = block_on(store.run(|_| column(&there))).unwrap();
    let expected = here.tensor("c").unwrap().slice((100..200, 3)).unwrap().read().unwrap();
    assert_eq!(loaded.bytes(), expected.bytes());
    assert!(server.take_log().byte_len() <= 100 * 64);
    // Nothing has been kept.
    assert!(column(&there).is_err());
}

#[test]
fn codes_are_refused_as_in_the_blocking_way() {
    let codes = counting(Dtype::F8_E4M3, 1024);
    let scales = TensorBuf::from_vec(vec![1, 1], vec![0.5_f32]).unwrap();
    let bytes = file(&[("w", codes), ("w_scale_inv", scales)]);
    let here = Checkpoint::from_source(bytes.clone(), "w.safetensors").unwrap();
    let server = server(vec![("w.safetensors", bytes)]);
    let store = server.store();
    let there = block_on(Checkpoint::open_async(&store, "w.safetensors", &Limits::default()));
    let there = there.unwrap();
    let options = LoadOptions::new().floats_as(Dtype::F32);
    let stored = options.clone().quantized(QuantizedWeights::Stored);
    server.take_log();
    for (options, is_fetched) in [(options, false), (stored, true)] {
        let loaded = block_on(store.load(&[there.tensor("w").unwrap()], &options));
        let expected = here.tensor("w").unwrap().read_with(&options);
        assert_eq!(outcome(loaded.map(|mut bufs| bufs.remove(0))), outcome(expected));
        // The refusal comes before anything is fetched.
        assert_eq!(!server.take_log().ranges.is_empty(), is_fetched);
    }
    // Whether a tensor is one of codes is known once it was fetched.
    let mask = ("mask", counting(Dtype::U8, 800));
    let server =
        self::server(vec![("m/w.safetensors", file(&[("w", counting(Dtype::F16, 800)), mask]))]);
    let store = server.store();
    let there = block_on(Checkpoint::open_async(&store, "m/w.safetensors", &Limits::default()));
    let there = there.unwrap();
    let _fetched = block_on(store.fetch(&all(&there), &LoadOptions::new())).unwrap();
    for tensor in there.tensors() {
        tensor.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
    }
}

#[test]
fn errors_name_tensor_and_file_and_pass() {
    let server = server(sharded());
    let store = server.store();
    let open =
        |path: &'static str| block_on(Checkpoint::open_async(&store, path, &Limits::default()));
    let missing = open("nothing/model.safetensors").unwrap_err();
    assert_eq!(io_kind(&missing), io::ErrorKind::NotFound, "{missing}");
    assert!(missing.to_string().contains("nothing/model.safetensors"), "{missing}");
    assert!(open("nothing").is_err());

    // A header cannot be fetched, and the next time it can.
    let fail = |at| *server.failing.lock().unwrap() = at;
    let two = PathBuf::from("gpt/two.safetensors");
    fail(Some((two.clone(), 9)));
    let error = open("gpt").unwrap_err().to_string();
    assert!(error.contains("two.safetensors") && error.contains("the line is dead"), "{error}");
    fail(None);
    let checkpoint = open("gpt").unwrap();

    // So it is with a tensor.
    let (b, c) = (checkpoint.tensor("b").unwrap(), checkpoint.tensor("c").unwrap());
    fail(Some((two.clone(), c.file_offset() + 5000)));
    let text = |result: Result<Vec<TensorBuf>, Error>| result.unwrap_err().to_string();
    let loaded = text(block_on(store.load(&[b, c], &LoadOptions::new())));
    let run = text(block_on(store.run(|_| checkpoint.read_all(&LoadOptions::new()))));
    for error in [loaded, run] {
        assert!(error.contains("the line is dead"), "{error}");
        assert!(error.contains("\"c\"") && error.contains("two.safetensors"), "{error}");
    }
    block_on(store.load(&[b], &LoadOptions::new())).unwrap();
    fail(None);
    block_on(store.load(&[b, c], &LoadOptions::new())).unwrap();

    // Bytes that nobody has fetched.
    let error = c.read().unwrap_err();
    assert_eq!(io_kind(&error), io::ErrorKind::WouldBlock, "{error}");
    let mut byte = [0];
    let end = c.source().byte_len();
    let past = c.source().read_exact_at(&mut byte, end).unwrap_err();
    assert_eq!(past.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn hostile_files_are_refused_as_in_memory() {
    let whole = file(&[("a", counting(Dtype::F32, 1000))]);
    let long = [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat();
    let past = [&99_000_000_u64.to_le_bytes()[..], &whole[8..]].concat();
    let html = b"<!DOCTYPE html><html><body>Not found</body></html>".to_vec();
    for bytes in [Vec::new(), whole[..5].to_vec(), whole[..2000].to_vec(), long, past, html] {
        let here = Checkpoint::from_source(bytes.clone(), "m.safetensors").unwrap_err();
        let server = server(vec![("m.safetensors", bytes)]);
        let there =
            block_on(Checkpoint::open_async(&server.store(), "m.safetensors", &Limits::default()));
        assert_eq!(there.unwrap_err().to_string(), here.to_string());
        assert!(server.take_log().byte_len() < 2048, "only the start");
    }
}

#[test]
fn progress_counts_bytes_and_can_cancel() {
    let values = vec![1_u8; 3 << 20];
    let tensors =
        ["a", "b"].map(|name| (name, TensorView::from_slice(&[3 << 20], &values).unwrap()));
    let bytes = serialize(tensors, &SaveOptions::new()).unwrap();
    let server = Arc::new(Server::new([("m.safetensors", bytes)]).requests(256 << 10, 2));
    let store = server.store();
    let checkpoint =
        block_on(Checkpoint::open_async(&store, "m.safetensors", &Limits::default())).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let options = LoadOptions::new().progress({
        let seen = Arc::clone(&seen);
        move |progress| {
            let tensor = progress.tensor.to_owned();
            seen.lock().unwrap().push((progress.bytes_done, progress.bytes_total, tensor));
            ControlFlow::Continue(())
        }
    });
    block_on(store.load(&all(&checkpoint), &options)).unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.len() >= 6 && seen.is_sorted() && seen.iter().all(|(_, all, _)| *all == 6 << 20));
    assert_eq!(seen.last().unwrap(), &(6 << 20, 6 << 20, "b".to_owned()));
    assert_eq!(seen[0].2, "a");

    server.take_log();
    let cancelling = LoadOptions::new().progress(|_| ControlFlow::Break(()));
    let error = block_on(store.load(&all(&checkpoint), &cancelling)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled));
    assert!(server.take_log().byte_len() < 2 << 20);
}

#[test]
fn a_dropped_future_leaves_nothing_behind_and_fetched_bytes_stay() {
    let server = server(sharded());
    let store = server.store();
    let checkpoint = block_on(Checkpoint::open_async(&store, "gpt", &Limits::default())).unwrap();
    let tensors = all(&checkpoint);
    {
        let options = LoadOptions::new();
        let mut load = std::pin::pin!(store.load(&tensors, &options));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..5 {
            assert!(load.as_mut().poll(&mut context).is_pending());
        }
        assert!(server.log.lock().unwrap().in_flight > 0);
    }
    assert_eq!(server.log.lock().unwrap().in_flight, 0);
    let is_held = |tensor: &LazyTensor<'_, AsyncFile<RemoteFile>>| tensor.read().is_ok();
    assert!(!tensors.iter().any(is_held));

    let fetched = block_on(store.fetch(&tensors[..1], &LoadOptions::new())).unwrap();
    server.take_log();
    assert_eq!(tensors.iter().map(is_held).collect::<Vec<_>>(), [true, false, false]);
    // Present bytes are not fetched again, and not dropped by others.
    block_on(store.load(&tensors[..1], &LoadOptions::new())).unwrap();
    assert!(server.take_log().ranges.is_empty() && is_held(&tensors[0]));
    drop(fetched);
    assert!(!is_held(&tensors[0]));
}

/// Fails to compile if a task of a runtime with several threads could not await this.
fn assert_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn tasks_of_several_threads_read_one_checkpoint() {
    let server = server(sharded());
    let store = server.store();
    let checkpoint =
        block_on(assert_send(Checkpoint::open_async(&store, "gpt", &Limits::default()))).unwrap();
    let expected: Vec<_> = {
        let here = MemoryStore::from_iter(sharded());
        let here = Checkpoint::open_in(here, "gpt", &Limits::default()).unwrap();
        here.tensors().map(|it| it.read().unwrap().bytes().to_vec()).collect()
    };
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for start in 0..4_usize {
            let (store, checkpoint, expected, done) = (&store, &checkpoint, &expected, &done);
            scope.spawn(move || {
                for turn in 0..6 {
                    let at = (start + turn) % 3;
                    let tensor = checkpoint.tensor_at(at).unwrap();
                    let options = LoadOptions::new();
                    let one = [tensor];
                    let loaded = match turn % 2 {
                        0 => block_on(assert_send(store.load(&one, &options))).unwrap().remove(0),
                        _ => block_on(assert_send(store.run(|_| tensor.read()))).unwrap(),
                    };
                    assert_eq!(loaded.bytes(), expected[at]);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 24);
    assert!(checkpoint.tensors().all(|tensor| tensor.read().is_err()), "nothing stays");
}

/// A file with reads that wait until another task has counted on.
struct Slow(Vec<u8>, Arc<AtomicU64>);

impl AsyncReadAt for Slow {
    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let before = self.1.load(Ordering::Relaxed);
        // Not for ever, should the other task never have its turn.
        for _ in 0..1000 {
            if self.1.load(Ordering::Relaxed) > before {
                break;
            }
            tokio::task::yield_now().await;
        }
        ReadAt::read_exact_at(&self.0, buf, offset)
    }
}

#[test]
fn a_task_of_tokio_loads_while_others_run_in_its_only_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let files: BTreeMap<_, _> =
        sharded().into_iter().map(|(name, bytes)| (PathBuf::from(name), bytes)).collect();
    let ticks = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&ticks);
    let store = AsyncStore::new(move |path: PathBuf| {
        let found = files.get(&path).cloned().map(|bytes| Slow(bytes, Arc::clone(&counter)));
        async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) }
    });
    let bufs = runtime.block_on(async {
        let counted = Arc::clone(&ticks);
        tokio::spawn(async move {
            loop {
                tokio::task::yield_now().await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let load = tokio::spawn(async move {
            let checkpoint = Checkpoint::open_async(&store, "gpt", &Limits::default()).await?;
            store.load(&all(&checkpoint), &LoadOptions::new()).await
        });
        load.await.unwrap().unwrap()
    });
    assert_eq!(bufs.len(), 3);
    assert!(ticks.load(Ordering::Relaxed) >= 3, "{ticks:?}");
}

#[test]
fn a_function_that_opens_is_enough() {
    let store: AsyncStore<RemoteFile, _> = AsyncStore::new(|path: PathBuf| async move {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{}?", path.display())))
    });
    let error =
        block_on(Checkpoint::open_async(&store, "m.safetensors", &Limits::default())).unwrap_err();
    assert!(error.to_string().contains("m.safetensors?"), "{error}");
}
