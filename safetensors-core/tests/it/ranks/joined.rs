//! Whole tensors of parts, and parts of whole tensors.

use safetensors_core::checkpoint::Assembled;
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankRules, RankSaver};
use safetensors_core::save as save_file;

use super::problem;
use crate::support::*;

/// Makes a file with tensors of many dtypes and shapes, with bytes that all differ from their
/// neighbours.
fn plain(path: &Path) {
    fn view<'a>(bytes: &'a [u8], dtype: Dtype, shape: &'a [usize], len: usize) -> TensorView<'a> {
        TensorView::new(dtype, shape, &bytes[..len]).unwrap()
    }

    let bytes = repeated(3 << 20, 251, |i| (i % 251) as u8);
    let tensors = [
        ("rows", view(&bytes, Dtype::F32, &[12, 3], 144)),
        ("columns", view(&bytes, Dtype::BF16, &[5, 24], 240)),
        ("middle", view(&bytes, Dtype::U8, &[3, 12, 7], 252)),
        ("packed", view(&bytes, Dtype::F4, &[3, 24], 36)),
        // Wider than a piece, and many rows in a piece.
        ("wide", view(&bytes, Dtype::U8, &[1, 3 << 20], 3 << 20)),
        ("tall", view(&bytes, Dtype::I16, &[1 << 18, 6], 3 << 20)),
        ("empty", view(&bytes, Dtype::F64, &[12, 0], 0)),
        ("scalar", view(&bytes, Dtype::F64, &[], 8)),
    ];
    let options = SaveOptions::new().metadata([("note", "x"), ("tied", "columns")]);
    save_file(path, tensors, &options).unwrap();
}

fn rules(kind: &str) -> RankRules {
    let rules = [
        format!("{{rows,empty}}={kind}:0"),
        format!("{{columns,middle,packed,tall,wide}}={kind}:1"),
        "scalar=replicate".into(),
    ];
    rules.iter().fold(RankRules::new(), |all, rule| all.parse_rule(rule).unwrap())
}

/// Divides a checkpoint among ranks, from its file.
fn divide(checkpoint: &Checkpoint<impl ReadAt>, to: &Path, rules: &RankRules, world_size: usize) {
    let plan = rules.plan(checkpoint, world_size).unwrap();
    let options = ShardOptions::new()
        .save_options(SaveOptions::new().durable(false))
        .metadata(checkpoint.metadata().clone());
    for rank in 0..world_size {
        let parts = plan.tensors().map(|tensor| {
            let part = tensor.part(rank).unwrap();
            (tensor.name(), checkpoint.tensor(tensor.name()).unwrap().slice(part).unwrap())
        });
        RankSaver::new(&plan, rank, "a").save(to, parts, &options).unwrap();
    }
}

#[test]
fn divided_tensors_are_joined() {
    let directory = tempdir().unwrap();
    let [from, back] = ["a.safetensors", "b.safetensors"].map(|name| directory.path().join(name));
    plain(&from);
    let checkpoint = Checkpoint::open(&from).unwrap();
    for (kind, world_size) in
        [("split", 1), ("split", 2), ("split", 3), ("uneven", 6), ("uneven", 11)]
    {
        let kinds = if kind == "uneven" && world_size == 11 {
            // Half a byte cannot be cut.
            RankRules::new().parse_rule("packed=replicate").unwrap().then(rules(kind))
        } else {
            rules(kind)
        };
        let divided = directory.path().join(format!("{kind}-{world_size}"));
        divide(&checkpoint, &divided, &kinds, world_size);
        let divided = Checkpoint::open(&divided).unwrap();
        let options = SaveOptions::new().durable(false);
        Rewrite::from_checkpoint(&divided).save(&back, &options).unwrap();
        let gathered = Checkpoint::open(&back).unwrap();
        assert_eq!((gathered.len(), divided.len()), (checkpoint.len(), checkpoint.len()));
        for tensor in checkpoint.tensors() {
            let expected = tensor.read().unwrap();
            let name = tensor.name();
            let [written, read] =
                [gathered.tensor(name).unwrap().read(), divided.tensor(name).unwrap().read()];
            for found in [written.unwrap(), read.unwrap()] {
                assert_eq!((found.dtype(), found.shape()), (tensor.dtype(), tensor.shape()));
                assert!(found.bytes() == expected.bytes(), "{kind} {name}");
            }
        }
        // The other name of a tied tensor has survived, and nothing of the parts.
        let metadata = gathered.metadata();
        assert_eq!((metadata["note"].as_str(), metadata["tied"].as_str()), ("x", "columns"));
        assert!(metadata.keys().all(|key| !key.starts_with("safetensors_bridge.")), "{metadata:?}");
        assert!(gathered.get("tied").is_some());
    }
}

/// Tensors that are cast pass by once for each rank, piece by piece.
#[test]
fn a_rewrite_divides_cast_and_already_divided_tensors() {
    let directory = tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    plain(&at("a.safetensors"));
    let checkpoint = Checkpoint::open(at("a.safetensors")).unwrap();
    let options = ShardOptions::new().save_options(SaveOptions::new().durable(false));
    let divide = |rewrite: Rewrite<'_, Assembled>, world_size, to: &str| {
        let plan = rewrite.plan_ranks(&rules("split"), world_size, &SaveOptions::new()).unwrap();
        rewrite.save_ranks(at(to), &plan, to, &options).unwrap();
        (Checkpoint::open(at(to)).unwrap(), plan)
    };
    let (three, _) = divide(Rewrite::from_checkpoint(&checkpoint), 3, "three");
    let to = |name: &str| (name == "tall").then_some(Dtype::I64);
    let cast =
        Rewrite::from_checkpoint(&three).cast(&ConvertOptions::new(), |name, _| to(name)).unwrap();
    let (two, plan) = divide(cast, 2, "two");
    for rank in 0..2 {
        let parts = plan.read(&two, rank, &LoadOptions::new()).unwrap();
        for (tensor, part) in plan.tensors().zip(parts) {
            let whole = checkpoint.tensor(tensor.name()).unwrap();
            let slice = whole.slice(tensor.part(rank).unwrap()).unwrap();
            let expected = slice.read_with(&LoadOptions::new().all_as(tensor.dtype())).unwrap();
            assert_eq!(part.shape(), expected.shape());
            assert!(part.bytes() == expected.bytes(), "{} of {rank}", tensor.name());
        }
    }
    // The tensors of the plan come in another order than the file's.
    let names = ["tall", "scalar", "rows", "columns", "middle", "packed", "wide", "empty"];
    let other_order = names.map(|name| {
        let tensor = checkpoint.tensor(name).unwrap();
        (name, tensor.dtype(), tensor.shape().to_vec())
    });
    let reversed = rules("split").plan_tensors(other_order, 2).unwrap();
    Rewrite::from_checkpoint(&checkpoint)
        .save_ranks(at("reversed"), &reversed, "r", &options)
        .unwrap();
    let back = Checkpoint::open(at("reversed")).unwrap();
    for tensor in checkpoint.tensors() {
        let found = back.tensor(tensor.name()).unwrap();
        assert!(found.read().unwrap().bytes() == tensor.read().unwrap().bytes());
    }
    // A plan of other tensors is refused before anything is written.
    refused!(
        Rewrite::from_checkpoint(&checkpoint).save_ranks(at("none"), &plan, "x", &options),
        ErrorKind::Mismatches { .. }
    );
    assert!(!at("none").exists());
    // Three ranks have other parts than two, and each of two reads its own of them.
    let two = rules("split").plan(&three, 2).unwrap();
    for (rank, part) in [0, 1].map(|rank| (rank, two.read(&three, rank, &LoadOptions::new()))) {
        for (tensor, part) in two.tensors().zip(part.unwrap()) {
            let whole = checkpoint.tensor(tensor.name()).unwrap();
            let expected = whole.slice(tensor.part(rank).unwrap()).unwrap().read().unwrap();
            assert!(part.bytes() == expected.bytes(), "{} of {rank}", tensor.name());
        }
    }
}

/// Writes an index, and its file with two tensors of two bytes and this record of parts.
fn recorded(directory: &Path, record: &str) -> Result<Checkpoint<Assembled>> {
    let record = record.replace('"', "\\\"");
    let tensor = |name, begin| {
        let end = begin + 2;
        format!(r#""{name}":{{"dtype":"U8","shape":[2],"data_offsets":[{begin},{end}]}}"#)
    };
    let metadata = format!(r#""__metadata__":{{"safetensors_bridge.parts":"{record}"}}"#);
    let header = format!("{{{metadata},{},{}}}", tensor("a", 0), tensor("b", 2));
    write(directory, "x.safetensors", file(header, 4));
    let index = br#"{"metadata":{},"weight_map":{"a":"x.safetensors","b":"x.safetensors"}}"#;
    Checkpoint::open(write(directory, "x.safetensors.index.json", index))
}

#[test]
fn a_hostile_record_is_refused() {
    let directory = tempdir().unwrap();
    let part = |name: &str, rest: &str| format!(r#""{name}":{{"tensor":"w",{rest}}}"#);
    let whole = r#""shape":[4],"dim":0,"offset":0"#;
    let second = r#""shape":[4],"dim":0,"offset":2"#;
    let good = format!("{{{},{}}}", part("a", whole), part("b", second));
    let checkpoint = recorded(directory.path(), &good).unwrap();
    assert_eq!(checkpoint.tensor("w").unwrap().shape(), [4]);
    drop(checkpoint);
    for record in [
        "".to_owned(),
        "[]".into(),
        "{} {}".into(),
        format!("{{{}}}", part("a", whole)),
        format!("{{{},{}}}", part("a", whole), part("a", whole)),
        format!("{{{},{}}}", part("a", whole), part("b", whole)),
        format!("{{{},{}}}", part("a", whole), part("c", second)),
        good.replace("\"offset\":2", "\"offset\":1"),
        good.replace("\"offset\":2", "\"offset\":3"),
        good.replace("\"offset\":2", "\"offset\":-1"),
        good.replace("\"offset\":2", "\"offset\":18446744073709551615"),
        good.replace("\"offset\":2", "\"offset\":2,\"x\":1"),
        good.replace("\"dim\":0", "\"dim\":1"),
        good.replace("[4]", "[5]"),
        good.replace("[4]", "[]"),
        good.replace("[4]", "[4,1]"),
        good.replace("[4]", &format!("{:?}", [1; 1025])),
        good.replacen("[4]", "[18446744073709551615]", 1),
    ] {
        let error = recorded(directory.path(), &record).unwrap_err();
        let is_bad = match error.kind() {
            ErrorKind::TooManyDimensions { .. } => true,
            _ => matches!(problem(&error), RankProblem::BadParts { .. }),
        };
        assert!(is_bad && error.to_string().len() < 1500, "{record}: {error}");
    }
    // The whole has the name of another tensor.
    let taken = part("a", r#""shape":[2],"dim":0,"offset":0"#).replace("\"w\"", "\"b\"");
    let error = recorded(directory.path(), &format!("{{{taken}}}")).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::BadParts { .. }), "{error}");
}

#[test]
fn a_missing_part_is_refused() {
    let (directory, path) = place("a.safetensors");
    plain(&path);
    let to = directory.path().join("divided");
    divide(&Checkpoint::open(&path).unwrap(), &to, &rules("split"), 3);
    // Parts are no tensors: they open together, and no file of them opens alone or is lent.
    let file = to.join("model-00001-of-00003.safetensors");
    let error = Checkpoint::open(&file).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::PartsOfTensors), "{error}");
    for path in [&to, &to.join("model.safetensors.index.json")] {
        let whole = Checkpoint::open(path).unwrap();
        for error in [whole.audit().unwrap_err(), whole.into_stored().unwrap_err()] {
            assert!(matches!(problem(&error), RankProblem::PartsOfTensors), "{error}");
        }
    }
    let index = fs::read_to_string(to.join("model.safetensors.index.json")).unwrap();
    let mut index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let map = index["weight_map"].as_object_mut().unwrap();
    map.retain(|_, file| file != "model-00001-of-00003.safetensors");
    fs::write(to.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let error = Checkpoint::open(&to).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::BadParts { .. }), "{error}");
    assert!(error.tensor().is_some());
}
