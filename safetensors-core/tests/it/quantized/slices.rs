//! A part of a weight costs the bytes of its own codes and scales.

use safetensors_core::load::read_slices;
use safetensors_core::slice::RankPart;
use safetensors_core::{Checkpoint, Limits, LoadOptions};
use safetensors_testing::quantized::Quantized;
use safetensors_testing::read_at::NotingSource;

/// Every tensor of these weights is divided evenly by the rows of the weight.
#[test]
fn rows_of_a_rank_read_only_their_codes_and_scales() {
    for (name, ranks) in
        [("awq-gemm", 5), ("gptq-v1-4bits", 4), ("modelopt-nvfp4", 2), ("ct-pack-4bits", 3)]
    {
        let fixture = Quantized::named(name);
        let source = NotingSource::new(std::fs::read(fixture.model()).unwrap());
        let open = |_: &_| Ok(source.clone());
        let checkpoint = Checkpoint::open_by(fixture.model(), &Limits::default(), open).unwrap();
        let weight = checkpoint.quantized_weights().unwrap().remove(0);
        let tensors = weight.tensors.iter().map(|name| checkpoint.tensor(name).unwrap());
        // Small tensors belong to the weight as a whole.
        let expected: u64 = tensors
            .map(|tensor| {
                tensor.byte_len() / if tensor.shape().len() < 2 { 1 } else { ranks as u64 }
            })
            .sum();
        let numbers = checkpoint.dequantized().unwrap();
        let tensor = numbers.tensor(&weight.name).unwrap();
        let whole = tensor.read().unwrap();
        source.take_len();
        let part = tensor.slice(RankPart::new(0, 1, ranks)).unwrap();
        let read = read_slices(&[part], &LoadOptions::new()).unwrap();
        let len = source.take_len();
        assert!(len <= expected, "{name}: {len} bytes, expected {expected}");
        assert!(len * 3 > expected, "{name}: {len} bytes, expected {expected}");
        let size = whole.bytes().len() / ranks;
        assert_eq!(read[0].bytes(), &whole.bytes()[size..2 * size], "{name}");
    }
}
