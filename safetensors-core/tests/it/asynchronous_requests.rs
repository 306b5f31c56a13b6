//! The requests and the memory of checkpoints with files that are read asynchronously, and files
//! that fail or change during that.

use std::cell::Cell;
use std::io;
use std::sync::Barrier;

use safetensors_core::checkpoint::store::{AsyncFile, AsyncStore};
use safetensors_core::io::AsyncReadAt;
use safetensors_testing::asynchronous::{Opening, RemoteFile, Server, block_on};

use crate::support::*;

const FILE: &str = "m.safetensors";

fn file(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let count = |i: usize| (i % 251) as u8;
    let bytes = |shape: &[usize]| (0..shape.iter().product()).map(count).collect::<Vec<u8>>();
    let bytes: Vec<_> = tensors.iter().map(|(_, shape)| bytes(shape)).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| (*name, TensorView::from_slice(shape, bytes).unwrap()));
    serialize(views, &SaveOptions::new()).unwrap()
}

/// Makes a file with a header of more than 64 KiB.
fn long_header(prefix: &str) -> Vec<u8> {
    let names: Vec<_> = (0..900).map(|number| format!("{prefix}.{number:060}")).collect();
    file(&names.iter().map(|name| (&**name, &[1_usize][..])).collect::<Vec<_>>())
}

fn open<O>(
    store: &AsyncStore<RemoteFile, O>,
    path: &str,
) -> Result<Checkpoint<AsyncFile<RemoteFile>>>
where
    O: Fn(PathBuf) -> Opening + Send + Sync + 'static,
{
    block_on(Checkpoint::open_async(store, path, &Limits::default()))
}

#[test]
fn parts_of_long_rows_take_two_runs_and_few_requests() {
    let server = Arc::new(Server::new([(FILE, file(&[("w", &[64, 4096])]))]));
    let store = server.store();
    let checkpoint = open(&store, FILE).unwrap();
    let tensor = checkpoint.tensor("w").unwrap();
    let runs = Cell::new(0);
    let run = |read: &dyn Fn() -> Result<Vec<u8>>| {
        runs.set(0);
        server.take_log();
        let read = |_: &_| {
            runs.set(runs.get() + 1);
            read()
        };
        (block_on(store.run(read)).unwrap(), runs.get(), server.take_log().ranges.len())
    };
    let bytes = |buf: TensorBuf| buf.bytes().to_vec();

    let column: Vec<u8> = (0..64).map(|row| ((row * 4096 + 3) % 251) as u8).collect();
    let slice = tensor.slice((.., 3)).unwrap();
    assert_eq!(run(&|| slice.read().map(bytes)), (column.clone(), 2, 1), "joined over the gaps");
    let saved = run(&|| serialize([("c", &slice)], &SaveOptions::new()));
    assert_eq!((&saved.0[saved.0.len() - 64..], saved.1, saved.2), (&column[..], 2, 1));
    // These are too far from each other.
    let rows = tensor.rows(&[60, 0, 30]).unwrap();
    let (read, runs, requests) = run(&|| rows.read().map(bytes));
    assert_eq!((read[4096], runs, requests), (0, 2, 3));
    let (saved, runs, requests) = run(&|| serialize([("r", &rows)], &SaveOptions::new()));
    assert_eq!((&saved[saved.len() - read.len()..], runs, requests), (&read[..], 2, 3));
}

#[test]
fn long_headers_are_fetched_together_within_the_limits_and_again_after_a_failure() {
    let map: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|shard| format!(r#""{shard}.{:060}": "{shard}.safetensors""#, 0))
        .collect();
    let index = format!(r#"{{"weight_map": {{{}}}}}"#, map.join(", "));
    let mut files = vec![("gpt/model.safetensors.index.json".to_owned(), index.into())];
    for shard in ["a", "b", "c"] {
        files.push((format!("gpt/{shard}.safetensors"), long_header(shard)));
    }
    let server = Arc::new(Server::new(files));
    let store = server.store();

    let mut limits = Limits::default();
    limits.header_bytes = 65_000;
    refused!(
        block_on(Checkpoint::open_async(&store, "gpt", &limits)),
        ErrorKind::HeaderTooLarge { limit: 65_000, .. }
    );
    assert_eq!(server.take_log().ranges.len(), 1 + 3, "only the starts");

    *server.failing.lock().unwrap() = Some(("gpt/b.safetensors".into(), 70_000));
    let error = open(&store, "gpt").unwrap_err().to_string();
    assert!(error.contains("b.safetensors") && error.contains("the line is dead"), "{error}");
    *server.failing.lock().unwrap() = None;
    server.take_log();
    let checkpoint = open(&store, "gpt").unwrap();
    let log = server.take_log();
    assert_eq!((checkpoint.len(), log.ranges.len(), log.most), (3, 1 + 3 + 3, 3));

    // Nothing of them stays open.
    let others = Arc::strong_count(&server);
    drop(checkpoint);
    assert_eq!(Arc::strong_count(&server), others - 4);
}

#[test]
fn bytes_stay_as_long_as_any_that_fetched_them() {
    let server = Arc::new(Server::new([(FILE, file(&[("a", &[1, 9000]), ("b", &[1, 70_000])]))]));
    let store = server.store();
    let checkpoint = open(&store, FILE).unwrap();
    let [a, b] = ["a", "b"].map(|name| checkpoint.tensor(name).unwrap());
    let fetch = |tensors: &[LazyTensor<'_, _>]| {
        block_on(store.fetch(tensors, &LoadOptions::new())).unwrap()
    };
    let first = fetch(&[a]);
    server.take_log();
    let (second, both) = (fetch(&[a]), fetch(&[a, b]));
    assert!(server.take_log().byte_len() <= 70_000, "only what was not there");
    drop(first);
    assert!(a.read().is_ok() && b.read().is_ok());
    drop(both);
    assert!(a.read().is_ok() && b.read().is_err());
    drop(second);
    assert!(a.read().is_err());
}

#[test]
fn runs_do_not_wait_for_each_other_and_note_only_their_own_reads() {
    let server = Arc::new(Server::new([(FILE, file(&[("a", &[70_000]), ("b", &[90_000])]))]));
    let store = server.store();
    let checkpoint = open(&store, FILE).unwrap();
    let [a, b] = ["a", "b"].map(|name| checkpoint.tensor(name).unwrap());
    server.take_log();
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut has_met = false;
                block_on(store.run(|_| {
                    // Each is inside at the same time as the other.
                    if !std::mem::replace(&mut has_met, true) {
                        both.wait();
                    }
                    a.read()
                }))
                .unwrap()
            });
        }
    });
    // Somebody else's read fails, and is not fetched.
    let read = store.run(|_| {
        std::thread::scope(|scope| scope.spawn(|| b.read().unwrap_err()).join().unwrap());
        a.read()
    });
    assert_eq!(block_on(read).unwrap().bytes().len(), 70_000);
    // The threads of a load are its own.
    let options = LoadOptions::new().threads(3);
    let log = server.take_log();
    assert!(log.byte_len() <= 3 * 70_000, "{}", log.byte_len());
    let read = store.run(|_| checkpoint.read_all(&options));
    assert_eq!(block_on(read).unwrap().len(), 2);
}

#[test]
fn a_load_that_cannot_convert_fetches_nothing() {
    let server = Arc::new(Server::new([(FILE, file(&[("a", &[70_000]), ("b", &[90_000])]))]));
    let store = server.store();
    let checkpoint = open(&store, FILE).unwrap();
    server.take_log();
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let options = LoadOptions::new().all_as(Dtype::F4);
    let error = refused!(block_on(store.load(&tensors, &options)), ErrorKind::NoConversion { .. });
    assert_eq!((error.tensor(), server.take_log().ranges.len()), (Some("a"), 0));
}

#[test]
fn a_source_that_allows_no_byte_gets_requests_of_one() {
    let server = Server::new([(FILE, file(&[("a", &[3])])), ("empty.safetensors", Vec::new())]);
    let server = Arc::new(server.requests(0, 1));
    let store = server.store();
    let checkpoint = open(&store, FILE).unwrap();
    let loaded = block_on(store.load(&[checkpoint.tensor("a").unwrap()], &LoadOptions::new()));
    assert_eq!(loaded.unwrap()[0].bytes(), [0, 1, 2]);
    refused!(open(&store, "empty.safetensors"), ErrorKind::TooShort { found: 0 });
}

/// A file of a server that reports versions.
struct Versioned(Vec<u8>);

impl AsyncReadAt for Versioned {
    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        ReadAt::read_exact_at(&self.0, buf, offset)
    }

    fn version(&self) -> Option<String> {
        Some(format!("{:?}", self.0))
    }
}

#[test]
fn an_index_that_is_replaced_while_its_files_are_opened_is_opened_again() {
    let index = |file: &str| format!(r#"{{"weight_map": {{"w": "{file}"}}}}"#).into_bytes();
    let files = BTreeMap::from([
        ("model.safetensors.index.json", index("old.safetensors")),
        ("old.safetensors", file(&[("w", &[1])])),
        ("new.safetensors", file(&[("w", &[2])])),
    ]);
    for is_removed in [false, true] {
        let files = Mutex::new(files.clone());
        let store = AsyncStore::new(move |path: PathBuf| {
            let mut files = files.lock().unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name == "old.safetensors" {
                files.insert("model.safetensors.index.json", index("new.safetensors"));
                if is_removed {
                    files.remove(name);
                }
            }
            let found = files.get(name).cloned().map(Versioned);
            async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) }
        });
        let opened = block_on(Checkpoint::open_async(&store, "gpt", &Limits::default())).unwrap();
        assert_eq!(opened.tensor("w").unwrap().shape(), [2]);
    }
}

#[test]
fn an_index_of_parts_is_refused_if_the_store_cannot_list_files() {
    let options =
        SaveOptions::new().metadata([("DCP_SHARDING_INFO", r#"{"w": {"saved_offsets": [0]}}"#)]);
    let view = TensorView::from_slice(&[2], &[1_u8, 2]).unwrap();
    for (name, is_whole) in [
        // So PyTorch names files of whole tensors, and counts them.
        ("model-00001-of-00001", true),
        ("model-00001-of-00002", false),
        ("shard-00001-model-00001-of-00001", false),
        ("one", false),
    ] {
        let index = format!(r#"{{"weight_map": {{"w": "{name}.safetensors"}}}}"#);
        let files: [(_, Vec<u8>); 2] = [
            ("gpt/model.safetensors.index.json".into(), index.into()),
            (format!("gpt/{name}.safetensors"), serialize([("w", view)], &options).unwrap()),
        ];
        let store = MemoryStore::from_iter(files.clone());
        assert_eq!(Checkpoint::open_in(store, "gpt", &Limits::default()).unwrap().len(), 1);
        match open(&Arc::new(Server::new(files)).store(), "gpt") {
            Ok(checkpoint) => assert!(is_whole && checkpoint.len() == 1, "{name}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(name) && error.contains("does not list"), "{error}");
                assert!(!is_whole, "{error}");
            }
        }
    }
}
