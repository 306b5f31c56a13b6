//! A merge takes the memory of a few pieces, for weights of any size.

use safetensors_testing::files::write_hole;
use safetensors_testing::memory::growth;
use safetensors_testing::memory::resident;
use safetensors_testing::process::is_alone;

use super::adapter;
use crate::support::*;

#[test]
fn a_weight_is_merged_in_less_memory_than_it_has() {
    if !is_alone(a_weight_is_merged_in_less_memory_than_it_has) {
        return;
    }
    const MIB: u64 = 1 << 20;
    let (dir, path) = place("model.safetensors");
    // 48 MiB of zeros, which are a hole in the file.
    let shape = vec![6144, 4096];
    write_hole(&path, [("q.weight".to_owned(), Dtype::BF16, shape)]);
    let tensors: [(&str, &[usize]); 2] =
        [("q.lora_A.weight", &[1, 4096]), ("q.lora_B.weight", &[6144, 1])];
    let merged = Checkpoint::open(&path).unwrap();
    let merged = merged.merged([adapter(None, &tensors).unwrap()]).unwrap();
    let out = dir.path().join("out.safetensors");
    let save = || {
        Rewrite::from_checkpoint(&merged).save(&out, &SaveOptions::new().durable(false)).unwrap()
    };
    let ((), grown) = growth(resident(), save);
    assert!(grown < 24 * MIB, "{} MiB", grown / MIB);
    let saved = Checkpoint::open(&out).unwrap();
    let row = saved.tensor("q.weight").unwrap().slice((6143,)).unwrap().read().unwrap();
    let row = row.convert(Dtype::F32, &Default::default()).unwrap();
    assert_eq!(row.as_slice::<f32>().unwrap()[..3], [6144.0, 12288.0, 18432.0]);
}

#[test]
fn groups_of_a_pattern_take_no_memory() {
    if !is_alone(groups_of_a_pattern_take_no_memory) {
        return;
    }
    let settings = |count: usize| {
        let patterns = (0..count).map(|i| format!("\"{}.{{50}}{i}\": 1", "()".repeat(450)));
        let patterns = patterns.collect::<Vec<_>>().join(", ");
        format!(", \"r\": 1, \"rank_pattern\": {{{patterns}}}")
    };
    let tensors: [(&str, &[usize]); 2] = [
        ("base_model.model.q.lora_A.weight", &[1, 4]),
        ("base_model.model.q.lora_B.weight", &[4, 1]),
    ];
    adapter(Some(&settings(1)), &tensors).unwrap();
    let (opened, grown) = growth(resident(), || adapter(Some(&settings(100)), &tensors));
    opened.unwrap();
    assert!(grown < 8 << 20, "{} KiB", grown >> 10);
}
