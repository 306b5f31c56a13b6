//! Replacements for candle's ways to build a model.

use std::path::Path;

use candle_core::{DType, Tensor, pickle};
use candle_nn::VarBuilder;
use candle_nn::var_builder::{Shard, ShardedSafeTensors};
use safetensors_candle::{
    Checkpoint, CheckpointBackend, IntoCandle, load, tensor_parallel_var_builder, var_builder,
    var_builder_from,
};

use super::{CPU, Line, assert_same, pytorch_file, tensors};

/// Whether two builders give the same.
#[track_caller]
fn assert_build_same(ours: &VarBuilder, theirs: &VarBuilder) -> candle_core::Result<()> {
    for (name, shape) in [("weight", &[4, 2][..]), ("bias", &[4][..])] {
        let (ours, theirs) = (ours.pp("fc"), theirs.pp("fc"));
        assert_same(&ours.get(shape, name)?, &theirs.get(shape, name)?);
        assert_same(&ours.get_unchecked(name)?, &theirs.get_unchecked(name)?);
        assert_eq!(ours.contains_tensor(name), theirs.contains_tensor(name));
    }
    assert!(ours.get((2, 4), "fc.weight").is_err() && theirs.get((2, 4), "fc.weight").is_err());
    Ok(())
}

fn mapped<P: AsRef<Path>>(paths: &[P]) -> VarBuilder<'static> {
    // SAFETY: nothing changes the files while they are mapped.
    unsafe { VarBuilder::from_mmaped_safetensors(paths, DType::F32, &CPU) }.unwrap()
}

pub(super) const LINES: &[(&str, Line)] = &[
    ("`VarBuilder::from_mmaped_safetensors` of one file (`unsafe`)", |files| {
        let ours = var_builder(&files.file, DType::F32, &CPU).into_candle()?;
        assert_build_same(&ours, &mapped(&[&files.file]))
    }),
    ("`from_mmaped_safetensors` of the files that an index names", |files| {
        let theirs = mapped(&files.shards());
        for path in [files.sharded.clone(), files.sharded.join("model.safetensors.index.json")] {
            assert_build_same(&var_builder(path, DType::F32, &CPU).into_candle()?, &theirs)?;
        }
        Ok(())
    }),
    ("`from_mmaped_safetensors` of any other files", |files| {
        let ours = Checkpoint::open_files(files.shards()).into_candle()?;
        assert_build_same(&var_builder_from(ours, DType::F32, &CPU), &mapped(&files.shards()))
    }),
    ("`VarBuilder::from_buffered_safetensors`, `from_slice_safetensors`", |files| {
        let bytes = files.bytes();
        let buffered = VarBuilder::from_buffered_safetensors(bytes.clone(), DType::F32, &CPU)?;
        let slice = VarBuilder::from_slice_safetensors(&bytes, DType::F32, &CPU)?;
        let ours = Checkpoint::from_source(bytes.clone(), "buffer").into_candle()?;
        assert_build_same(&var_builder_from(ours, DType::F32, &CPU), &buffered)?;
        let ours = Checkpoint::from_source(&bytes[..], "slice").into_candle()?;
        assert_build_same(&var_builder_from(ours, DType::F32, &CPU), &slice)
    }),
    ("`VarBuilder::from_backend`", |files| {
        let open = || Checkpoint::open(&files.file).into_candle();
        let backend = Box::new(CheckpointBackend::new(open()?));
        let theirs = VarBuilder::from_backend(backend, DType::F32, CPU);
        assert_build_same(&var_builder_from(open()?, DType::F32, &CPU), &theirs)
    }),
    ("`VarBuilder::from_npz`", |files| {
        let path = files.path("building.npz");
        Tensor::write_npz(&tensors().into_iter().collect::<Vec<_>>(), &path)?;
        let ours = safetensors_formats::open(&path, &Default::default()).unwrap();
        let theirs = VarBuilder::from_npz(&path, DType::F32, &CPU)?;
        assert_build_same(&var_builder_from(ours, DType::F32, &CPU), &theirs)
    }),
    ("`VarBuilder::from_pth`, `from_pth_with_state`", |_| {
        let path = pytorch_file();
        let theirs = VarBuilder::from_pth(&path, DType::F32, &CPU)?;
        let ours = safetensors_formats::open(&path, &Default::default()).unwrap();
        let ours = var_builder_from(ours, DType::F32, &CPU);
        let all = pickle::read_all(&path)?;
        assert!(!all.is_empty());
        for (name, tensor) in all {
            let expected = theirs.get(tensor.dims(), &name)?;
            assert_same(&ours.get(tensor.dims(), &name)?, &expected);
        }
        // It compiles, and takes the name of a part of the file.
        assert!(VarBuilder::from_pth_with_state(&path, DType::F32, "none", &CPU).is_err());
        Ok(())
    }),
    ("`VarBuilder::from_varmap`, `from_tensors`, `zeros`", |files| {
        let ours = load(&files.file, &CPU).into_candle()?.into_iter().collect();
        let theirs = mapped(&[&files.file]);
        assert_build_same(&VarBuilder::from_tensors(ours, DType::F32, &CPU), &theirs)
    }),
    ("`VarBuilder::rename`, `rename_f`, `pp`, `set_prefix`, `to_dtype`, `set_device`", |files| {
        let builders =
            || [var_builder(&files.file, DType::F32, &CPU).unwrap(), mapped(&[&files.file])];
        let [ours, theirs] = builders()
            .map(|builder| builder.rename_f(|name| name.replace("renamed.", "fc.")).pp("renamed"));
        assert_same(&ours.get(4, "bias")?, &theirs.get(4, "bias")?);
        let [ours, theirs] = builders()
            .map(|builder| builder.set_prefix("fc").to_dtype(DType::BF16).set_device(CPU));
        assert_same(&ours.get((4, 2), "weight")?, &theirs.get((4, 2), "weight")?);
        let [ours, theirs] = builders().map(|builder| builder.rename(Renamer));
        assert_same(&ours.get(4, "b")?, &theirs.get(4, "b")?);
        Ok(())
    }),
    ("`ShardedSafeTensors::var_builder` (`unsafe`)", |files| {
        let ours = tensor_parallel_var_builder(&files.file, DType::F32, &CPU).into_candle()?;
        // SAFETY: nothing changes the file while it is mapped.
        let theirs = unsafe { ShardedSafeTensors::var_builder(&[&files.file], DType::F32, &CPU) }?;
        let hint = Shard { dim: 0, rank: 1, world_size: 2 };
        let [ours, theirs] = [
            ours.get_with_hints((4, 2), "fc.weight", hint)?,
            theirs.get_with_hints((4, 2), "fc.weight", hint)?,
        ];
        assert_eq!(ours.dims(), [2, 2]);
        assert_same(&ours, &theirs);
        Ok(())
    }),
    ("a builder that hides tensors by their names", |files| {
        let backend = CheckpointBackend::new(Checkpoint::open(&files.file).into_candle()?)
            .filter(|name| name != "fc.bias");
        let builder = backend.var_builder(DType::F32, &CPU);
        assert!(builder.contains_tensor("fc.weight") && !builder.contains_tensor("fc.bias"));
        Ok(())
    }),
];

struct Renamer;

impl candle_nn::var_builder::Renamer for Renamer {
    fn rename(&self, name: &str) -> std::borrow::Cow<'_, str> {
        format!("fc.{name}ias").into()
    }
}
