//! Replacements for candle's ways to save tensors.

use std::collections::HashMap;
use std::fs;

use candle_core::{DType, Tensor, safetensors as candles};
use candle_nn::{VarBuilder, VarMap};
use safetensors_candle::safetensors_core::framework::Framework;
use safetensors_candle::{
    Candle, Checkpoint, IntoCandle, SaveOptions, ShardOptions, load, save, save_sharded, train,
};

use super::{CPU, Files, Line, assert_same, tensors};

pub(super) const LINES: &[(&str, Line)] = &[
    ("`candle_core::safetensors::save`", |files| {
        let (theirs, ours) = (files.path("theirs.safetensors"), files.path("ours.safetensors"));
        let all: HashMap<String, Tensor> = tensors().into_iter().collect();
        candles::save(&all, &theirs)?;
        save(&ours, &all, &SaveOptions::new()).into_candle()?;
        save_sharded(files.path("shards"), &all, &ShardOptions::new()).into_candle()?;
        let written = candles::load(&theirs, &CPU)?;
        for (name, theirs) in &written {
            assert_same(&load(&ours, &CPU).into_candle()?[name], theirs);
            assert_same(&load(files.path("shards"), &CPU).into_candle()?[name], theirs);
        }
        Ok(())
    }),
    ("`Tensor::save_safetensors(name, path)`", |files| {
        let (theirs, ours) = (files.path("one-theirs"), files.path("one-ours"));
        let tensor = &tensors()["ids"];
        tensor.save_safetensors("ids", &theirs)?;
        save(&ours, [("ids", tensor)], &SaveOptions::new()).into_candle()?;
        assert_same(
            &load(&ours, &CPU).into_candle()?["ids"],
            &candles::load(&theirs, &CPU)?["ids"],
        );
        Ok(())
    }),
    ("`candle_nn::VarMap::save`", |files| {
        let map = VarMap::new();
        candle_nn::linear(2, 4, VarBuilder::from_varmap(&map, DType::F32, &CPU).pp("fc"))?;
        let (theirs, ours) = (files.path("map-theirs"), files.path("map-ours"));
        map.save(&theirs)?;
        train::save(&ours, &map, &SaveOptions::new()).into_candle()?;
        let theirs = candles::load(&theirs, &CPU)?;
        let ours = candles::load(&ours, &CPU)?;
        assert_eq!(ours.len(), theirs.len());
        theirs.iter().for_each(|(name, theirs)| assert_same(&ours[name], theirs));
        Ok(())
    }),
    ("`Tensor::write_npy`, `Tensor::write_npz`", |files| {
        let path = files.path("written.npz");
        let tensor = &tensors()["fc.bias"];
        let mut writer = safetensors_formats::npz::Writer::new(fs::File::create(&path)?);
        writer.add("b", &Candle::source(tensor).into_candle()?).unwrap();
        writer.finish().unwrap();
        assert_same(&Tensor::read_npz(&path)?[0].1, tensor);
        Ok(())
    }),
];

/// Tests the text below the table of saving.
#[cfg(unix)]
#[test]
fn candle_renames_a_file_of_its_owner_alone_and_writes_no_metadata() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let files = Files::new();
    let path = files.path("modes.safetensors");
    let all: HashMap<String, Tensor> = tensors().into_iter().collect();
    let state = || {
        let metadata = fs::metadata(&path).unwrap();
        (metadata.ino(), metadata.mode() & 0o777)
    };
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (old, _) = state();
    let kept = fs::File::open(&path).unwrap();
    candles::save(&all, &path).unwrap();
    let (new, mode) = state();
    assert!(old != new && kept.metadata().unwrap().len() == 3, "the old file is as it was");
    assert_eq!(mode, 0o600);
    assert!(Checkpoint::open(&path).unwrap().metadata().is_empty());
}
