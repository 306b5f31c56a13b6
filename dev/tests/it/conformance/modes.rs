//! The mode of a file that is saved: a new file has the usual one, and a replaced file keeps its
//! own, for every way to save. `safetensors-core/tests/it/modes.rs` has owners, shards and
//! read-only files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use candle_core::Device;
use candle_nn::VarMap;
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
use safetensors_bridge::edit::Edit;
use safetensors_bridge::ndarray::{DynArray, Writer};
use safetensors_bridge::{
    Result, Rewrite, SaveOptions, TensorBuf, burn as to_burn, candle as to_candle,
    ndarray as to_ndarray, save,
};

#[derive(Module, Debug)]
struct Weight {
    weight: Param<Tensor<1>>,
}

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

fn buf() -> TensorBuf {
    TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap()
}

/// Saves a tensor to a path, which may have a file.
type Way = fn(&Path) -> Result<()>;

const WAYS: [(&str, Way); 8] = [
    ("save", |path| save(path, [("weight", &buf())], &options())),
    ("Rewrite", |path| Rewrite::new().add("weight", buf())?.save(path, &options())),
    ("ndarray's save", |path| {
        to_ndarray::save(path, [("weight", &DynArray::from_buf(buf())?)], &options())
    }),
    ("ndarray's Writer", |path| {
        let writer = Writer::create_with(path, &options())?;
        writer.add("weight", &ndarray::array![1.0_f32, 2.0])?;
        writer.finish()
    }),
    ("candle's save", |path| {
        let weight = candle_core::Tensor::new(&[1.0_f32, 2.0], &Device::Cpu).unwrap();
        to_candle::save(path, [("weight", &weight)], &options())
    }),
    ("candle's train::save", |path| to_candle::train::save(path, &VarMap::new(), &options())),
    ("burn's save", |path| {
        to_burn::save(path, [("weight", &TensorData::from([1.0_f32, 2.0]))], &options())
    }),
    ("burn's CheckpointStore", |path| {
        let weight = Weight { weight: Param::from_data([0.0; 2], &Default::default()) };
        let store = CheckpointStore::from_file(path).save_options(options());
        weight.save_into(&mut store.overwrite(true))
    }),
];

/// Changes a file that is there.
const EDITS: [(&str, Way); 2] = [
    ("an edit in place", |path| {
        let edit = Edit::open(path)?.in_place(true).set_metadata([("edited", "in place")]);
        edit.apply().map(drop)
    }),
    ("an edit that writes the file again", |path| {
        Edit::open(path)?.set_metadata([("edited", "x".repeat(9999))]).apply().map(drop)
    }),
];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_new_file_has_the_usual_mode_and_a_file_that_is_replaced_keeps_its_own() {
    let dir = tempfile::tempdir().unwrap();
    // The umask of the process is unknown here, so a file that is created in the usual way shows it.
    let usual = dir.path().join("usual");
    fs::write(&usual, "").unwrap();
    let path = dir.path().join("model.safetensors");
    for (way, write) in WAYS {
        write(&path).unwrap();
        assert_eq!(mode(&path), mode(&usual), "{way}");
        for expected in [0o600, 0o640, 0o664, 0o666, 0o755] {
            fs::set_permissions(&path, Permissions::from_mode(expected)).unwrap();
            write(&path).unwrap_or_else(|error| panic!("{way}: {error}"));
            assert_eq!(mode(&path), expected, "{way}");
        }
        fs::remove_file(&path).unwrap();
    }
    for (way, write) in EDITS {
        for expected in [0o600, 0o640, 0o666, 0o755] {
            save(&path, [("weight", &buf())], &options()).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(expected)).unwrap();
            write(&path).unwrap();
            assert_eq!(mode(&path), expected, "{way}");
        }
    }
}
