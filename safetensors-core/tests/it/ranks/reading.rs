//! The reads of ranks: their parts, no byte more, each starting with another file.

use std::io;

use safetensors_core::error::Mismatch;
use safetensors_core::io::FileSource;
use safetensors_core::ranks::RankRules;

use crate::support::*;

/// The reads of all files, in order: the file, and the number of bytes.
type Log = Arc<Mutex<Vec<(PathBuf, u64)>>>;

/// A file that writes down how it is read.
#[derive(Debug)]
struct Counting {
    file: FileSource,
    path: PathBuf,
    log: Log,
}

impl ReadAt for Counting {
    fn byte_len(&self) -> u64 {
        self.file.byte_len()
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.log.lock().unwrap().push((self.path.clone(), bytes.len() as u64));
        self.file.read_exact_at(bytes, offset)
    }
}

/// Opens a checkpoint that logs reads of data.
fn open(directory: &Path) -> (Checkpoint<Counting>, Log) {
    let log = Log::default();
    let checkpoint = Checkpoint::open_by(directory, &Limits::default(), |path| {
        Ok(Counting { file: FileSource::open(path)?, path: path.into(), log: log.clone() })
    });
    let checkpoint = checkpoint.unwrap();
    log.lock().unwrap().clear();
    (checkpoint, log)
}

/// A model like Llama, of two layers in four files. Rows are so long that parts of them are read
/// without the gaps between them.
fn llama(directory: &Path) -> u64 {
    const HIDDEN: usize = 512;
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![64, HIDDEN]),
        ("lm_head.weight".to_owned(), vec![64, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..2 {
        for (name, rows, columns) in [
            ("self_attn.q_proj", 256, HIDDEN),
            ("self_attn.k_proj", 64, HIDDEN),
            ("self_attn.o_proj", HIDDEN, 2 * HIDDEN),
            ("mlp.up_proj", 2 * HIDDEN, HIDDEN),
            ("mlp.down_proj", HIDDEN, 2 * HIDDEN),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), vec![rows, columns]));
        }
        let norm = format!("model.layers.{layer}.input_layernorm.weight");
        tensors.push((norm, vec![HIDDEN]));
    }
    let values: Vec<u8> = (0..1 << 19).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape)| {
            let len = shape.iter().product::<usize>();
            (name, TensorView::new(Dtype::F32, shape, &values[..4 * len]).unwrap())
        })
        .collect();
    let total: u64 = views.iter().map(|(_, view)| view.data().len() as u64).sum();
    let options = ShardOptions::new()
        .max_shard_size((total / 3).into())
        .save_options(SaveOptions::new().durable(false));
    assert!(save_sharded(directory, views, &options).unwrap().files.len() >= 4);
    total
}

#[test]
fn the_bytes_of_all_ranks_are_the_split_ones_and_the_replicated_ones_for_each() {
    let directory = tempdir().unwrap();
    let total = llama(directory.path());
    for world_size in [1, 2, 4, 8] {
        let (checkpoint, log) = open(directory.path());
        let plan = RankRules::llama().plan(&checkpoint, world_size).unwrap();
        assert_eq!(plan.total_size(), total);
        let whole = Checkpoint::open(directory.path()).unwrap();
        for rank in 0..world_size {
            let before = read(&log);
            let parts = plan.read(&checkpoint, rank, &LoadOptions::new().threads(2)).unwrap();
            assert_eq!(read(&log) - before, plan.byte_len(rank).unwrap());
            for (tensor, part) in plan.tensors().zip(parts) {
                let slice = whole.tensor(tensor.name()).unwrap();
                let slice = slice.slice(tensor.part(rank).unwrap()).unwrap().read().unwrap();
                assert_eq!(part.shape(), slice.shape());
                let is_same = part.bytes() == slice.bytes();
                assert!(is_same, "{} of {rank}", tensor.name());
            }
        }
        let replicated: u64 = plan
            .tensors()
            .filter(|tensor| tensor.division().dim().is_none())
            .map(|tensor| tensor.byte_len(0).unwrap())
            .sum();
        assert_eq!(replicated, 3 * 512 * 4);
        assert_eq!(read(&log), total - replicated + replicated * world_size as u64);
    }
}

fn read(log: &Log) -> u64 {
    log.lock().unwrap().iter().map(|(_, bytes)| bytes).sum()
}

#[test]
fn each_rank_begins_with_another_file() {
    let directory = tempdir().unwrap();
    llama(directory.path());
    let files = Checkpoint::open(directory.path()).unwrap().files().len();
    let begin = |world_size: usize| -> Vec<_> {
        let (checkpoint, log) = open(directory.path());
        let plan = RankRules::llama().plan(&checkpoint, world_size).unwrap();
        let begin = |rank| {
            log.lock().unwrap().clear();
            plan.read(&checkpoint, rank, &LoadOptions::new().threads(1)).unwrap();
            log.lock().unwrap()[0].0.clone()
        };
        (0..world_size).map(begin).collect()
    };
    let mut two = begin(2);
    two.dedup();
    assert_eq!(two.len(), 2);
    // As many ranks begin with one file as with any other.
    let many = begin(4 * files.next_power_of_two());
    for file in Checkpoint::open(directory.path()).unwrap().files() {
        let begun = many.iter().filter(|begun| *begun == file.path()).count();
        assert!(begun >= 3, "{}: {begun} of {}", file.path().display(), many.len());
    }
}

/// Small tensors are read together, and still in the order of the rank.
#[test]
fn small_tensors_are_read_from_another_file_on_too() {
    let directory = tempdir().unwrap();
    let names: Vec<_> = (0..8).map(|i| format!("norm{i}")).collect();
    let values = [1_u8; 4];
    let views = names.iter().map(|name| (name, TensorView::from_slice(&[4], &values).unwrap()));
    let options = ShardOptions::new().max_shard_size(8.into());
    save_sharded(directory.path(), views, &options).unwrap();
    let (checkpoint, log) = open(directory.path());
    let rules = RankRules::new().parse_rule("*=replicate").unwrap();
    let plan = rules.plan(&checkpoint, 4).unwrap();
    for rank in 0..4 {
        log.lock().unwrap().clear();
        plan.read(&checkpoint, rank, &LoadOptions::new().threads(1)).unwrap();
        let log = log.lock().unwrap();
        assert_eq!(log[0].0, checkpoint.files()[rank].path());
        let mut files: Vec<_> = log.iter().map(|(path, _)| path).collect();
        files.dedup();
        assert_eq!((files.len(), log.len()), (4, 8), "{log:?}");
    }
}

#[test]
fn a_checkpoint_that_differs_from_the_plan_is_refused() {
    let (_directory, path) = place("model.safetensors");
    let values = [1_u8; 8];
    fn view<'a>(shape: &'a [usize], values: &'a [u8]) -> TensorView<'a> {
        TensorView::new(Dtype::U8, shape, &values[..shape.iter().product()]).unwrap()
    }
    let tensors =
        [("a", view(&[4], &values)), ("b", view(&[4, 2], &values)), ("c", view(&[2], &values))];
    save(&path, tensors, &SaveOptions::new()).unwrap();
    let rules = RankRules::new().parse_rule("*=split:0").unwrap();
    let plan = rules.plan(&Checkpoint::open(&path).unwrap(), 2).unwrap();
    let changed = ["a", "c", "d"].map(|name| (name, view(&[2], &values)));
    save(&path, changed, &SaveOptions::new()).unwrap();
    let changed = Checkpoint::open(&path).unwrap();
    let error = plan.read(&changed, 0, &LoadOptions::new()).unwrap_err();
    let ErrorKind::Mismatches { mismatches } = error.kind() else { panic!("{error}") };
    let expected = [
        Mismatch::Shape { name: "a".into(), expected: vec![4], found: vec![2] },
        Mismatch::Extra { name: "d".into() },
        Mismatch::Missing { name: "b".into() },
    ];
    assert_eq!(mismatches.as_slice(), expected);
    refused!(
        plan.read(&changed, 2, &LoadOptions::new()),
        ErrorKind::NoSuchRank { rank: 2, world_size: 2 }
    );
}

#[test]
fn a_checkpoint_without_tensors() {
    let directory = tempdir().unwrap();
    let path = write(directory.path(), "model.safetensors", file("{}", 0));
    let checkpoint = Checkpoint::open(path).unwrap();
    let plan = RankRules::llama().plan(&checkpoint, 3).unwrap();
    assert!(plan.read(&checkpoint, 2, &LoadOptions::new()).unwrap().is_empty());
    assert_eq!(plan.byte_len(2).unwrap(), 0);
}
