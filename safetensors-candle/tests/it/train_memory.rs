//! Loading into variables, and saving them in the background, takes the memory of the tensors and little more.

use candle_core::{DType, Device, Var};
use candle_nn::{ParamsAdamW, VarMap};
use safetensors_candle::train::{self, AdamW};
use safetensors_core::SaveOptions;
use safetensors_core::save::BackgroundSaver;
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;

const MIB: u64 = 1 << 20;

#[test]
fn a_load_takes_the_bytes_of_its_tensors_and_32_mib_at_most() {
    if !is_alone(a_load_takes_the_bytes_of_its_tensors_and_32_mib_at_most) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (model, both) = (dir.path().join("a.safetensors"), dir.path().join("b.safetensors"));
    let options = SaveOptions::new().durable(false);
    let var_map = VarMap::new();
    for i in 0..4 {
        let var = Var::ones((8 * MIB / 4) as usize, DType::F32, &Device::Cpu).unwrap();
        var_map.data().lock().unwrap().insert(format!("layer.{i}"), var);
    }
    let mut optimizer = AdamW::from_var_map(&var_map, ParamsAdamW::default()).unwrap();
    let before = peak();
    train::save(&model, &var_map, &options).unwrap();
    assert!(peak() - before < 16 * MIB, "a save copies nothing");

    // In the background it copies the variables, once however often it is called.
    let mut saver = BackgroundSaver::new();
    for _ in 0..3 {
        train::save_in_background(&mut saver, &model, &var_map, &options).unwrap();
    }
    saver.wait().unwrap();
    let taken = peak() - before;
    assert!((32 * MIB..48 * MIB).contains(&taken), "{} MiB for 32 MiB", taken / MIB);

    train::load(&model, &var_map).unwrap();
    let taken = peak() - before;
    assert!((32 * MIB..64 * MIB).contains(&taken), "{} MiB for 32 MiB", taken / MIB);

    // The optimizer's first state is zeros that have never been in memory, and does not count.
    train::save(&both, (&var_map, &optimizer), &options).unwrap();
    train::load(&both, (&var_map, &mut optimizer)).unwrap();
    let taken = peak() - before;
    assert!((96 * MIB..128 * MIB).contains(&taken), "{} MiB for 96 MiB", taken / MIB);
}
