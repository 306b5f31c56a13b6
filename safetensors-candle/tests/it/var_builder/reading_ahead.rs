//! Which tensors are read before the model asks for them, and how many bytes that takes.

use candle_core::{DType, Device};
use candle_nn::var_builder::SimpleBackend;
use safetensors_core::TensorBuf;

use super::spy::{assert_values, backend, builder, model, sorted};

/// Returns the bytes of a tensor in the file, which has BF16.
fn bytes(len: usize) -> u64 {
    2 * len as u64
}

#[test]
fn a_model_gets_its_tensors_in_a_few_reads_and_no_byte_is_read_twice() {
    let model = model(24);
    let (backend, spy) = backend(&sorted(&model));
    let builder = builder(&backend);
    let mut reading = 0;
    for (name, len) in &model {
        assert_values(name, &builder.get(*len, name).unwrap());
        reading += u64::from(spy.take_calls() > 0);
    }
    let all: u64 = model.iter().map(|(_, len)| bytes(*len)).sum();
    assert_eq!(spy.take_read(), all);
    assert!(reading <= 12, "{reading} of {} requests read", model.len());
    assert_eq!(backend.unused().count(), 0);
}

#[test]
fn a_model_that_asks_for_few_reads_few() {
    let model = model(12);
    let (first, spy) = backend(&sorted(&model));
    // A single tensor.
    builder(&first).get(512, "model.layers.3.self_attn.q.weight").unwrap();
    assert_eq!(spy.take_read(), bytes(512));
    // One tensor of each layer.
    for layer in (0..12).filter(|layer| *layer != 3) {
        let name = format!("model.layers.{layer}.self_attn.k.weight");
        assert_values(&name, &builder(&first).get(256, &name).unwrap());
    }
    assert_eq!(spy.take_read(), 11 * bytes(256));

    // A tensor that is asked for again and again is no sequence.
    let (other, spy) = backend(&sorted(&model));
    for _ in 0..5 {
        builder(&other).get(256, "model.layers.0.self_attn.k.weight").unwrap();
    }
    assert_eq!(spy.take_read(), 5 * bytes(256));
}

/// In any order of a model's requests its tensors are right, at most twice the requested bytes are
/// read, and the tensors read ahead stay within the bound.
#[test]
fn the_bounds_hold_for_any_order() {
    let model = model(10);
    let tensors = sorted(&model);
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    for round in 0..60 {
        let limit = [0, 100, 4_000, 20_000, 1 << 30][round % 5];
        let (backend, spy) = backend(&tensors);
        let backend = backend.read_ahead(limit);
        let (mut asked, mut read) = (0, 0);
        let mut next = random(model.len());
        for _ in 0..random(2 * model.len()) {
            let (name, len) = &model[next];
            let tensor = backend.get_unchecked(name, DType::BF16, &Device::Cpu).unwrap();
            assert_values(name, &tensor);
            asked += bytes(*len);
            read += spy.take_read();
            assert!(read <= 2 * asked, "round {round}: {read} bytes for {asked}");
            // Mostly in sequence, with jumps and repetitions.
            next = match random(8) {
                0 => random(model.len()),
                1 => next,
                jump => (next + jump / 2) % model.len(),
            };
        }
    }
}

#[test]
fn bytes_read_ahead_stay_within_the_limit() {
    let model = model(16);
    // Without a bound, nothing is read ahead.
    for limit in [0, 5_000] {
        let (backend, spy) = backend(&sorted(&model));
        let backend = backend.read_ahead(limit);
        let (mut asked, mut read, mut most) = (0, 0, 0);
        for (name, len) in &model {
            // In memory the tensors are F32, twice as large as in the file.
            builder(&backend).get(*len, name).unwrap();
            asked += 2 * bytes(*len);
            read += 2 * spy.take_read();
            assert!(read - asked <= limit, "{} bytes ahead", read - asked);
            most = most.max(read - asked);
        }
        assert_eq!(read, asked, "each byte is read once, also in a window smaller than a layer");
        assert!(most >= limit / 2, "only {most} bytes ahead");
    }
}

#[test]
fn a_model_that_skips_much_ends_reading_ahead() {
    // Of each layer it asks for the attention only, a third of the bytes.
    let model = model(400);
    let (backend, spy) = backend(&sorted(&model));
    let limit = 20_000;
    let backend = backend.read_ahead(limit);
    let mut asked = 0;
    for (name, len) in model.iter().filter(|(name, _)| name.contains("self_attn")) {
        assert_values(name, &backend.get_unchecked(name, DType::BF16, &Device::Cpu).unwrap());
        asked += bytes(*len);
    }
    let wasted = spy.take_read() - asked;
    assert!(wasted <= asked / 8 + limit, "{wasted} bytes in vain for {asked}");
    assert_eq!(backend.unused().count(), model.len() - 3 * 400);
}

#[test]
fn tensors_of_another_dtype_are_read_again_and_do_not_stop_the_others() {
    let model = model(16);
    let (backend, spy) = backend(&sorted(&model));
    let builder = builder(&backend).set_dtype(DType::BF16);
    for (name, len) in &model {
        let dtype = if name.contains("norm") { DType::F32 } else { DType::BF16 };
        let tensor = builder.to_dtype(dtype).get(*len, name).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        assert_values(name, &tensor);
    }
    let all: u64 = model.iter().map(|(_, len)| bytes(*len)).sum();
    let norms = 17 * bytes(16);
    let read = spy.take_read();
    assert!((all..=all + norms).contains(&read), "{read} bytes for {all}");
}

#[test]
fn integers_and_hidden_tensors_are_left() {
    let mut tensors = sorted(&model(8));
    for layer in 0..8 {
        let ids = TensorBuf::from_vec(vec![8], vec![7_i64; 8]).unwrap();
        tensors.push((format!("model.layers.{layer}.ids"), ids));
    }
    let (backend, spy) = backend(&tensors);
    let backend = backend.filter(|name| !name.contains("mlp"));
    let model = model(8);
    let seen = || model.iter().filter(|(name, _)| !name.contains("mlp"));
    for (name, len) in seen() {
        builder(&backend).get(*len, name).unwrap();
    }
    assert_eq!(spy.take_read(), seen().map(|(_, len)| bytes(*len)).sum::<u64>());
    assert_eq!(backend.unused().count(), 8);
    let ids = builder(&backend).get_unchecked_dtype("model.layers.7.ids", DType::I64).unwrap();
    assert_eq!(ids.to_vec1::<i64>().unwrap(), [7; 8]);
}
