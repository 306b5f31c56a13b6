//! How both handle files and models that do not fit.

use std::fs;
use std::path::Path;

use candle_core::{DType, Tensor, safetensors as candles};
use candle_nn::{VarBuilder, VarMap};
use safetensors_candle::{
    Error, ErrorKind, IntoCandle, IntoCore, SaveOptions, load, save, train, var_builder,
};

use super::{CPU, Line, assert_same};
use crate::common::without_backtrace;

/// A problem of a file, and how both handle it.
pub(super) const LINES: &[(&str, Line)] = &[
    ("an integer that does not fit: −5 as U32", |files| {
        let path = files.path("five");
        save(&path, [("a", &Tensor::new(&[-5_i32], &CPU)?)], &SaveOptions::new()).into_candle()?;
        let [theirs, ours] = builders(&path, DType::U32);
        assert_eq!(theirs.get(1, "a")?.to_vec1::<u32>()?, [4294967291]);
        assert!(matches!(refused(&ours, "a").kind(), ErrorKind::DoesNotFit { .. }));
        Ok(())
    }),
    ("a float that is not an integer: 2.7 as I64", |files| {
        let path = files.path("float");
        save(&path, [("a", &Tensor::new(&[2.7_f32], &CPU)?)], &SaveOptions::new()).into_candle()?;
        let [theirs, ours] = builders(&path, DType::I64);
        assert_eq!(theirs.get(1, "a")?.to_vec1::<i64>()?, [2]);
        assert!(matches!(refused(&ours, "a").kind(), ErrorKind::DoesNotFit { .. }));
        Ok(())
    }),
    ("a conversion that does not exist", |files| {
        let [_, ours] = builders(&files.file, DType::F6E2M3);
        let error = ours.get(2, "ids").unwrap_err().into_core();
        assert!(matches!(error.kind(), ErrorKind::NoConversion { .. }), "{error}");
        Ok(())
    }),
    ("another shape than the model's", |files| {
        for builder in builders(&files.file, DType::F32) {
            let error = without_backtrace(builder.get(3, "fc.bias").unwrap_err());
            assert!(matches!(error, candle_core::Error::UnexpectedShape { .. }), "{error}");
        }
        Ok(())
    }),
    ("a header that breaks a rule of the format", |files| {
        // A key that no tensor has.
        let json = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}}"#;
        let bytes = [&(json.len() as u64).to_le_bytes()[..], json, &[7]].concat();
        let path = files.path("extra");
        fs::write(&path, &bytes)?;
        assert_eq!(candles::load_buffer(&bytes, &CPU)?.len(), 1);
        assert!(load(&path, &CPU).is_err());
        Ok(())
    }),
    ("a variable that is missing in the file", |files| {
        let mut map = VarMap::new();
        let builder = VarBuilder::from_varmap(&map, DType::F32, &CPU);
        let layer = candle_nn::linear(2, 4, builder.pp("fc"))?;
        candle_nn::linear(2, 4, builder.pp("other"))?;
        let before = layer.weight().copy()?;
        let options = train::StateOptions::new().allow_extra(true);
        assert!(options.load(&files.file, &map).is_err());
        assert_same(layer.weight(), &before);
        assert!(map.load(&files.file).is_err());
        Ok(())
    }),
    ("a tensor in the file that no variable takes", |files| {
        let mut map = VarMap::new();
        candle_nn::linear(2, 4, VarBuilder::from_varmap(&map, DType::F32, &CPU).pp("fc"))?;
        map.load(&files.file)?;
        assert!(train::load(&files.file, &map).is_err());
        train::StateOptions::new().allow_extra(true).load(&files.file, &map).into_candle()?;
        Ok(())
    }),
];

/// candle's builder, and ours.
fn builders(path: &Path, dtype: DType) -> [VarBuilder<'static>; 2] {
    let bytes = fs::read(path).unwrap();
    let theirs = VarBuilder::from_buffered_safetensors(bytes, dtype, &CPU);
    [theirs.unwrap(), var_builder(path, dtype, &CPU).unwrap()]
}

fn refused(builder: &VarBuilder, name: &str) -> Error {
    builder.get(1, name).unwrap_err().into_core()
}
