//! Replacements for candle's ways to load tensors.

use std::path::Path;

use candle_core::safetensors::{
    self as candles, BufferedSafetensors, Load, MmapedFile, MmapedSafetensors, SliceSafetensors,
};
use candle_core::{DType, Tensor, npy, pickle};
use candle_nn::{VarBuilder, VarMap};
use safetensors_candle::safetensors_core::checkpoint::store::MemoryStore;
use safetensors_candle::safetensors_core::framework::{self, Framework};
use safetensors_candle::safetensors_core::{SafeTensors, TensorView};
use safetensors_candle::{
    Candle, Checkpoint, Dtype, IntoCandle, Limits, LoadOptions, ReadTensorExt, Widening,
    from_candle_dtype, load, load_with, to_candle_dtype, train,
};

use super::{CPU, Line, assert_same, lazy, pytorch_file, tensors};

pub(super) const LINES: &[(&str, Line)] = &[
    ("`safetensors::load`", |files| {
        let theirs = candles::load(&files.file, &CPU)?;
        let ours = load(&files.file, &CPU).into_candle()?;
        let with = load_with(&files.file, &CPU, &LoadOptions::new()).into_candle()?;
        assert_eq!((ours.len(), with.len()), (theirs.len(), theirs.len()));
        for (name, theirs) in &theirs {
            assert_same(&ours[name], theirs);
            assert_same(&with[name], theirs);
        }
        Ok(())
    }),
    ("`safetensors::load_buffer`", |files| {
        let theirs = candles::load_buffer(&files.bytes(), &CPU)?;
        let mut store = MemoryStore::default();
        store.insert("model.safetensors", files.bytes());
        let open = Checkpoint::open_in(store, "model.safetensors", &Limits::default());
        let ours = framework::load::<Candle>(&open.into_candle()?, &CPU, &LoadOptions::new());
        let ours = ours.into_candle()?;
        assert_eq!(ours.len(), theirs.len());
        theirs.iter().for_each(|(name, theirs)| assert_same(&ours[name], theirs));
        Ok(())
    }),
    ("`safetensors::MmapedSafetensors::new`, `multi` (`unsafe`)", |files| {
        // SAFETY: nothing changes the files while they are mapped.
        let theirs = unsafe { MmapedSafetensors::new(&files.file) }?;
        // SAFETY: as above.
        let several = unsafe { MmapedSafetensors::multi(&files.shards()) }?;
        let ours = Checkpoint::open(&files.file).into_candle()?;
        // SAFETY: as above.
        let mapped = unsafe { Checkpoint::mmap(&files.sharded) }.into_candle()?;
        for name in ["fc.weight", "ids"] {
            let expected = theirs.load(name, &CPU)?;
            assert_same(&several.load(name, &CPU)?, &expected);
            assert_same(&lazy(&ours, name)?.read_tensor(&CPU)?, &expected);
            assert_same(&lazy(&mapped, name)?.read_tensor(&CPU)?, &expected);
        }
        Ok(())
    }),
    ("`safetensors::SliceSafetensors`, `BufferedSafetensors`", |files| {
        let bytes = files.bytes();
        let slice = SliceSafetensors::new(&bytes)?.load("ids", &CPU)?;
        let buffered = BufferedSafetensors::new(bytes.clone())?.load("ids", &CPU)?;
        let ours = SafeTensors::from_source(&bytes[..]).into_candle()?;
        assert_same(&ours.tensor("ids").into_candle()?.read_tensor(&CPU)?, &slice);
        let ours = SafeTensors::from_source(bytes.clone()).into_candle()?;
        assert_same(&ours.tensor("ids").into_candle()?.read_tensor(&CPU)?, &buffered);
        Ok(())
    }),
    ("their `get`, `tensors`", |files| {
        let bytes = files.bytes();
        let theirs = SliceSafetensors::new(&bytes)?;
        let ours = Checkpoint::open(&files.file).into_candle()?;
        assert_eq!(theirs.get("ids")?.shape(), lazy(&ours, "ids")?.shape());
        let mut names: Vec<_> = theirs.tensors().into_iter().map(|(name, _)| name).collect();
        names.sort();
        let mut found: Vec<_> = ours.tensors().map(|tensor| tensor.name().to_owned()).collect();
        found.sort();
        assert_eq!(found, names);
        assert!(theirs.get("none").is_err() && lazy(&ours, "none").is_err());
        Ok(())
    }),
    ("their `load(name, device)`", |files| {
        let theirs = BufferedSafetensors::new(files.bytes())?.load("fc.bias", &CPU)?;
        let ours = Checkpoint::open(&files.file).into_candle()?;
        assert_same(&lazy(&ours, "fc.bias")?.read_tensor(&CPU)?, &theirs);
        Ok(())
    }),
    ("`safetensors::MmapedFile`", |files| {
        // SAFETY: nothing changes the file while it is mapped.
        let theirs = unsafe { MmapedFile::new(&files.file) }?;
        // SAFETY: as above.
        let ours = unsafe { Checkpoint::mmap(&files.file) }.into_candle()?;
        let theirs = theirs.deserialize()?;
        let view = lazy(&ours, "ids")?.view().into_candle()?;
        assert_eq!(view.data(), theirs.tensor("ids").unwrap().data());
        Ok(())
    }),
    ("`safetensors::Load` of a view", |files| {
        let bytes = files.bytes();
        let theirs = SliceSafetensors::new(&bytes)?.get("ids")?.load(&CPU)?;
        let ours = SafeTensors::parse(&bytes[..]).into_candle()?;
        let view = ours.view("ids").into_candle()?;
        let ours = Candle::from_view(&view, &CPU, Widening::Lossless).into_candle()?;
        assert_same(&ours, &theirs);
        Ok(())
    }),
    ("`Tensor::from_raw_buffer`", |_| {
        let bytes = [1_u8, 0, 0, 0, 2, 0, 0, 0];
        let theirs = Tensor::from_raw_buffer(&bytes, DType::U32, &[2], &CPU)?;
        let view = TensorView::new(Dtype::U32, &[2], &bytes).into_candle()?;
        let ours = Candle::from_view(&view, &CPU, Widening::Lossless).into_candle()?;
        assert_same(&ours, &theirs);
        Ok(())
    }),
    ("`DType::try_from`, `safetensors::Dtype::from`", |_| {
        // candle converts the dtypes of the crate `safetensors`, by the same names.
        for dtype in [DType::U8, DType::I64, DType::BF16, DType::F32, DType::F8E4M3] {
            let ours = from_candle_dtype(dtype).into_candle()?;
            assert_eq!(to_candle_dtype(ours).into_candle()?, dtype);
        }
        Ok(())
    }),
    ("`VarMap::load`", |files| {
        let build = || {
            let map = VarMap::new();
            let builder = VarBuilder::from_varmap(&map, DType::F32, &CPU);
            candle_nn::linear(2, 4, builder.pp("fc")).map(|model| (map, model))
        };
        let path = files.path("variables.safetensors");
        let (saved, model) = build()?;
        saved.save(&path)?;
        let ((mut theirs, by_candle), (ours, here)) = (build()?, build()?);
        theirs.load(&path)?;
        train::load(&path, &ours).into_candle()?;
        assert_same(by_candle.weight(), model.weight());
        assert_same(here.weight(), model.weight());
        Ok(())
    }),
    ("`Tensor::read_npy`, `read_npz`, `read_npz_by_name`, `npy::NpzTensors`", |files| {
        let (npy, npz) = (files.path("a.npy"), files.path("a.npz"));
        let tensor = &tensors()["fc.weight"];
        tensor.write_npy(&npy)?;
        Tensor::write_npz(&[("w", tensor)], &npz)?;
        let read = |path: &Path| {
            let file = safetensors_formats::open(path, &Default::default()).unwrap();
            let first = file.tensors().next().unwrap();
            first.read_tensor(&CPU)
        };
        assert_same(&read(&npy)?, &Tensor::read_npy(&npy)?);
        let theirs = [
            Tensor::read_npz(&npz)?.remove(0).1,
            Tensor::read_npz_by_name(&npz, &["w"])?.remove(0),
            npy::NpzTensors::new(&npz)?.get("w")?.unwrap(),
        ];
        for theirs in theirs {
            assert_same(&read(&npz)?, &theirs);
        }
        Ok(())
    }),
    ("`pickle::read_all`, `read_all_with_key`, `PthTensors`", |_| {
        let path = pytorch_file();
        let ours = safetensors_formats::open(&path, &Default::default()).unwrap();
        let theirs = pickle::PthTensors::new(&path, None)?;
        let all = pickle::read_all(&path)?;
        assert_eq!(pickle::read_all_with_key(&path, None)?.len(), all.len());
        for (name, tensor) in all {
            assert_same(&lazy(&ours, &name)?.read_tensor(&CPU)?, &tensor);
            assert_same(&theirs.get(&name)?.unwrap(), &tensor);
        }
        Ok(())
    }),
    ("`pickle::read_pth_tensor_info`", |_| {
        let ours = safetensors_formats::open(pytorch_file(), &Default::default()).unwrap();
        for info in pickle::read_pth_tensor_info(pytorch_file(), false, None)? {
            let found = lazy(&ours, &info.name)?;
            assert_eq!(found.shape(), info.layout.shape().dims());
            assert_eq!(to_candle_dtype(found.dtype()).into_candle()?, info.dtype);
        }
        Ok(())
    }),
    ("`Tensor::index_select` of a table that was loaded whole", |files| {
        let rows = Tensor::new(&[3_u32, 0, 3], &CPU)?;
        let theirs = candles::load(&files.file, &CPU)?["fc.weight"].index_select(&rows, 0)?;
        let ours = Checkpoint::open(&files.file).into_candle()?;
        let ours = lazy(&ours, "fc.weight")?.rows(&[3, 0, 3]).into_candle()?;
        assert_same(&ours.read_tensor(&CPU)?, &theirs);
        Ok(())
    }),
];
