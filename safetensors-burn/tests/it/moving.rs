//! Models move between versions of burn: from the records of old versions into files for this store,
//! and from such files into burnpack, which burn reads without this crate.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::store::ModuleRecord;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_store::BurnpackStore;
use safetensors_burn::burn_pack::{Tensor as PackTensor, Writer as PackWriter};
use safetensors_burn::{CheckpointStore, ModuleSnapshot, bridge};
use safetensors_core::save::AtomicFile;
use safetensors_core::{Checkpoint, Rewrite, SaveOptions};
use safetensors_formats::{Options, burn as files};

#[derive(Module, Debug)]
enum Head {
    Linear(Linear),
    #[allow(dead_code, reason = "an enum has several variants")]
    Deep(Vec<Linear>),
}

/// The model of `dev/scripts/burn_records`, which has written the records with burn 0.18.
#[derive(Module, Debug)]
struct Model {
    encoder: Linear,
    layers: Vec<Linear>,
    norm: BatchNorm,
    head: Head,
    none: Option<Linear>,
    steps: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
    empty: Param<Tensor<2>>,
}

impl Model {
    fn new() -> Self {
        let device = Device::default();
        let linear = |inputs, outputs, bias| {
            LinearConfig::new(inputs, outputs).with_bias(bias).init(&device)
        };
        Self {
            encoder: linear(2, 3, true),
            layers: vec![linear(3, 3, false), linear(3, 1, true)],
            norm: BatchNormConfig::new(3).init(&device),
            head: Head::Linear(linear(1, 2, false)),
            none: None,
            steps: Param::initialized(ParamId::new(), Tensor::from_data([0, 0, 0], &device)),
            mask: Param::initialized(
                ParamId::new(),
                Tensor::from_data([[false, false, false]], &device),
            ),
            empty: Param::from_tensor(Tensor::zeros([0, 3], &device)),
        }
    }

    /// Each parameter by its path, with its id. burn's running statistics, which no optimizer
    /// changes, keep the ids that the module was made with.
    fn state(&self) -> Vec<(String, Option<u64>, TensorData)> {
        let one = |tensor: PackTensor| {
            let id = tensor.param_id.filter(|_| !tensor.name.contains("running"));
            (tensor.name.clone(), id, bridge::to_data(&tensor).unwrap())
        };
        self.collect(None, None, false).into_iter().map(one).collect()
    }
}

fn record(name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../extras/formats/tests/fixtures/burn").join(name)
}

/// Converts an old record, and loads it. Returns the file, and the model.
fn moved(directory: &Path, name: &str) -> (PathBuf, Model) {
    let old = safetensors_formats::open(record(name), &Options::new()).unwrap();
    let path = directory.join(name).with_extension("safetensors");
    Rewrite::from_checkpoint(&old).save(&path, &SaveOptions::new()).unwrap();
    let mut model = Model::new();
    let mut store = CheckpointStore::from_file(&path).param_ids(true);
    let result = model.load_from(&mut store).unwrap();
    assert!(result.is_success() && result.unused.is_empty() && result.missing.is_empty());
    (path, model)
}

/// Numbers from `first` on, in steps of a quarter, as the records have them.
fn numbers(first: f32, count: usize) -> Vec<f32> {
    (0..count).map(|i| first + i as f32 / 4.0).collect()
}

/// burn has kept the layout of `Linear` from 0.14 to 0.22: `O = IW + b` with a weight of `[input,
/// output]` (`burn_nn::Linear`). So nothing is transposed, and the outputs prove it.
#[test]
fn an_old_record_gives_a_module_of_this_burn_the_same_parameters() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["full.mpk", "half.mpk"] {
        let (_, model) = moved(dir.path(), name);
        let floats = |tensor: Tensor<2>| tensor.into_data().convert::<f32>().try_to_vec::<f32>();
        let Head::Linear(head) = &model.head else { panic!("another variant") };
        for (weight, shape, first) in [
            (&model.encoder.weight, [2, 3], 1.0),
            (&model.layers[0].weight, [3, 3], 20.0),
            (&model.layers[1].weight, [3, 1], 30.0),
            (&head.weight, [1, 2], 40.0),
        ] {
            assert_eq!(weight.dims(), shape);
            let expected = numbers(first, shape.iter().product());
            assert_eq!(floats(weight.val()).unwrap(), expected);
        }
        let steps = model.steps.val().into_data().convert::<i64>().try_to_vec::<i64>();
        assert_eq!(steps.unwrap(), [7, -1, 1000]);
        assert_eq!(model.mask.val().into_data(), TensorData::from([[true, false, true]]));
        assert_eq!(model.norm.running_var.value().dims(), [3]);
        let ids = [model.encoder.weight.id, model.layers[1].weight.id, head.weight.id];
        assert_eq!(ids.map(|id| id.val()), [10, 30, u64::MAX]);

        // A square weight would fit transposed, too. Its row 1 is its product with a unit vector.
        let like = &model.layers[0].weight;
        let unit = Tensor::<2>::from_data([[0.0, 1.0, 0.0]], &Device::default());
        let output = model.layers[0].forward(unit.cast(like.dtype()));
        assert_eq!(floats(output).unwrap(), numbers(20.0, 9)[3..6]);
    }
}

#[test]
fn a_file_goes_back_to_burn_with_the_same_bits_and_ids() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["full.mpk", "half.mpk"] {
        let (path, model) = moved(dir.path(), name);
        let pack = path.with_extension("bpk");
        let checkpoint = Checkpoint::open(&path).unwrap();
        let rewrite = Rewrite::from_checkpoint(&checkpoint);
        let writer = files::Writer::new(&rewrite).unwrap();
        let mut file = AtomicFile::create(&pack, &SaveOptions::new()).unwrap();
        writer.write(&file, |_| ()).unwrap();
        file.commit().unwrap();

        // Both of burn's own readers.
        let record = ModuleRecord::load(&pack).unwrap();
        assert_eq!(Model::new().load_record(record).state(), model.state());
        let mut other = Model::new();
        let result = other.load_from(&mut BurnpackStore::from_file(&pack)).unwrap();
        assert!(result.is_success() && result.unused.is_empty());
        let values = |model: &Model| model.state().into_iter().map(|(name, _, data)| (name, data));
        assert!(values(&other).eq(values(&model)));

        // And burn's writer makes the same bytes of the same tensors.
        let ids = &checkpoint.metadata()["safetensors_bridge.param_ids"];
        let ids: BTreeMap<String, u64> = serde_json::from_str(ids).unwrap();
        let tensors = model.state().into_iter().map(|(name, _, data)| {
            let ((bytes, shape, dtype), id) = (data.into_parts(), ids[&name]);
            PackTensor::new(name, dtype, shape, Some(id), bytes)
        });
        let mut tensors: Vec<_> = tensors.collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let expected = PackWriter::new(tensors).with_metadata("burn.version", "0.18.0");
        assert!(fs::read(&pack).unwrap() == *expected.into_bytes().unwrap());
    }
}

#[test]
fn files_of_burn_convert_to_the_file_of_this_store() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::new();
    let [record, stored] = ["record.bpk", "stored.bpk"].map(|name| dir.path().join(name));
    model.clone().into_record().save(&record).unwrap();
    model.save_into(&mut BurnpackStore::from_file(&stored)).unwrap();
    for (path, format) in [(record, None), (stored, Some("burnpack"))] {
        let read = safetensors_formats::open(&path, &Options::new()).unwrap();
        assert_eq!(read.metadata().get("format").map(String::as_str), format);
        let path = path.with_extension("safetensors");
        Rewrite::from_checkpoint(&read).save(&path, &SaveOptions::new()).unwrap();
        let mut other = Model::new();
        other.load_from(&mut CheckpointStore::from_file(&path).param_ids(true)).unwrap();
        assert_eq!(other.state(), model.state());
    }
}
