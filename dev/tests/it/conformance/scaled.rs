//! Quantised weights with a tensor of scales next to them.

use float8::F8E4M3;
use safetensors_bridge::framework::{TensorCache, load};
use safetensors_bridge::load::{ExpertLayout, ExpertOptions, QuantizedWeights};
use safetensors_bridge::{Checkpoint, Dtype, ErrorKind, LoadOptions, SaveOptions, TensorBuf, save};

use safetensors_testing::experts::Mixture;

use super::Fixture;
use super::sample::{parts, written};

/// Converted weights are multiplied by their scales, or refused; scales that were applied do not
/// come back.
pub(crate) fn weights_are_converted_with_their_scales<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let codes = [1.0, -2.0, 0.5, 448.0].map(F8E4M3::from_f32).to_vec();
    let codes = TensorBuf::from_vec(vec![2, 2], codes).unwrap();
    let scales = TensorBuf::from_vec(vec![2, 1], vec![0.5_f32, 3.0]).unwrap();
    save(&path, [("w", &codes), ("w_scale", &scales)], &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();

    let options = LoadOptions::new().floats_as(Dtype::F32);
    // Codes are no numbers in their own dtype, either.
    for options in [&options, &LoadOptions::new()] {
        let error = load::<F>(&checkpoint, device, options).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
        assert_eq!(error.tensor(), Some("w"));
    }

    let dequantized = options.clone().quantized(QuantizedWeights::Numbers);
    let loaded = load::<F>(&checkpoint, device, &dequantized).unwrap();
    let expected = TensorBuf::from_vec(vec![2, 2], vec![0.5_f32, -1.0, 1.5, 1344.0]).unwrap();
    assert_eq!(loaded.keys().collect::<Vec<_>>(), ["w"]);
    assert_eq!(written::<F>(&loaded["w"]), parts(&expected));

    let stored = options.quantized(QuantizedWeights::Stored);
    let raw = load::<F>(&checkpoint, device, &stored).unwrap();
    let expected = TensorBuf::from_vec(vec![2, 2], vec![1.0_f32, -2.0, 0.5, 448.0]).unwrap();
    assert_eq!(written::<F>(&raw["w"]), parts(&expected));
    assert_eq!(written::<F>(&raw["w_scale"]), parts(&scales));
}

/// A load asks for the layout that a model knows, whichever the file has.
pub(crate) fn experts_come_in_the_asked_layout<F: Fixture>(device: &F::Device) {
    let Mixture { split, stacked, .. } = Mixture::named("mixtral");
    for (layout, from, to) in
        [(ExpertLayout::Stacked, &split, &stacked), (ExpertLayout::Split, &stacked, &split)]
    {
        let load = |path, options| load::<F>(&Checkpoint::open(path).unwrap(), device, options);
        let options = LoadOptions::new().floats_as(Dtype::F32);
        let expected = load(to, &options).unwrap();
        let options = options.clone().experts(layout, ExpertOptions::new());
        let loaded = load(from, &options).unwrap();
        assert_eq!(loaded.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, tensor) in &loaded {
            assert_eq!(written::<F>(tensor), written::<F>(&expected[name]), "{name}");
        }
        let checkpoint = Checkpoint::open(from).unwrap();
        let cache = TensorCache::<F>::new(checkpoint, device.clone(), u64::MAX, &options).unwrap();
        for (name, tensor) in &expected {
            let cached = cache.get(name, ()).unwrap();
            assert_eq!(written::<F>(&*cached), written::<F>(tensor), "{name}");
        }
    }
}
