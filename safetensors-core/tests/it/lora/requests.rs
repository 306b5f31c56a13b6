//! The announcements and requests to a source behind a network.

use safetensors_core::io::Requests;
use safetensors_core::lora::Adapter;
use safetensors_testing::read_at::NotingSource;

use super::adapter;
use crate::support::*;

#[test]
fn a_merge_asks_for_the_ranges_that_a_load_would() {
    let tensor = |rows: usize| {
        let ones = TensorBuf::from_vec(vec![rows, 512], vec![1.0_f32; rows * 512]).unwrap();
        ones.convert(Dtype::BF16, &Default::default()).unwrap()
    };
    let tensors = [("plain", tensor(4)), ("q.weight", tensor(1024))];
    let bytes = serialize(tensors, &SaveOptions::new()).unwrap();
    for dtype in [Dtype::BF16, Dtype::F32] {
        let source = NotingSource::far(bytes.clone(), Requests::new(16 << 20, 2));
        let base = Checkpoint::from_source(source.clone(), "base").unwrap();
        let range = |name: &str| {
            let tensor = base.tensor(name).unwrap();
            tensor.file_offset()..tensor.file_offset() + tensor.byte_len()
        };
        let all = [range("plain"), range("q.weight")];
        let names: [(&str, &[usize]); 2] =
            [("q.lora_A.weight", &[1, 512]), ("q.lora_B.weight", &[1024, 1])];
        let merged = base.merged_as([adapter(None, &names).unwrap()], |_, _| dtype).unwrap();
        let heard = || {
            [source.take_announced(), source.take_calls().concat()].map(|mut ranges| {
                ranges.sort_by_key(|range| range.start);
                ranges
            })
        };
        assert!(heard()[0].is_empty());
        let weight = merged.tensor("q.weight").unwrap();
        let numbers = weight.read().unwrap().convert(Dtype::F32, &Default::default()).unwrap();
        assert_eq!(numbers.as_slice::<f32>().unwrap()[126 * 512 + 1], 1.0 + 127.0 * 2.0);
        assert_eq!(heard(), [&all[1..]; 2]);
        merged.read_all(&LoadOptions::new()).unwrap();
        assert_eq!(heard(), [&all[..]; 2]);
    }
}

/// The codes of a weight that is stored transposed are read together, as they are without adapters.
#[test]
fn a_merge_reads_a_quantised_base_as_a_load_does() {
    let (directory, path) = place("model.safetensors");
    let config = r#"{"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}"#;
    fs::write(directory.path().join("config.json"), config).unwrap();
    let zeros = [0; 512 * 64 * 4];
    let stored = [
        ("q.qweight", Dtype::I32, [512, 64], 4),
        ("q.scales", Dtype::F16, [16, 512], 2),
        ("q.qzeros", Dtype::I32, [16, 64], 4),
    ];
    let tensors = stored.iter().map(|(name, dtype, shape, size)| {
        (*name, TensorView::new(*dtype, shape, &zeros[..shape[0] * shape[1] * size]).unwrap())
    });
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let open = || {
        let open = |path: &_| Ok(NotingSource::new(fs::read(path).unwrap()));
        Checkpoint::open_by(&path, &Limits::default(), open).unwrap().dequantized().unwrap()
    };
    let (plain, base) = (open(), open());
    let names: [(&str, &[usize]); 2] =
        [("q.lora_A.weight", &[1, 512]), ("q.lora_B.weight", &[512, 1])];
    let merged = base.merged([adapter(None, &names).unwrap()]).unwrap();
    let of_plain = || plain.files()[0].safetensors().source().stored().take_reads();
    let of_merged = || merged.files()[0].safetensors().source().stored().stored().take_reads();
    of_plain();
    of_merged();
    for options in [None, Some(LoadOptions::new().threads(1))] {
        let (from, to) = (plain.tensor("q.weight").unwrap(), merged.tensor("q.weight").unwrap());
        let sum = match options {
            None => (from.read().unwrap(), to.read().unwrap()).1,
            Some(with) => (from.read_with(&with).unwrap(), to.read_with(&with).unwrap()).1,
        };
        assert_eq!(sum.as_slice::<f32>().unwrap()[511 * 512 + 3], 512.0 * 4.0);
        assert_eq!(of_merged(), of_plain());
    }
}

/// Parts of a weight with many adapters, and of others, by several threads.
#[test]
fn each_matrix_is_read_once() {
    let ones = |shape: [usize; 2]| {
        TensorBuf::from_vec(shape.to_vec(), vec![1.0_f32; shape[0] * shape[1]]).unwrap()
    };
    let names = ["a", "b", "c"];
    let weights = names.map(|name| (format!("{name}.weight"), ones([512, 512])));
    let base = serialize(weights, &SaveOptions::new()).unwrap();
    let base = Checkpoint::from_source(base, "base").unwrap();
    let mut sources = Vec::new();
    let adapters: Vec<_> = (0..20)
        .map(|_| {
            let pair = |name: &str| {
                let down = (format!("{name}.lora_A.weight"), ones([1, 512]));
                [down, (format!("{name}.lora_B.weight"), ones([512, 1]))]
            };
            let bytes = serialize(names.map(pair).concat(), &SaveOptions::new()).unwrap();
            let source = NotingSource::far(bytes, Requests::new(16 << 20, 2));
            sources.push(source.clone());
            Adapter::new(Checkpoint::from_source(source, "adapter").unwrap()).unwrap()
        })
        .collect();
    sources.iter().for_each(|source| _ = source.take_calls());
    let merged = base.merged(adapters).unwrap();
    let loaded = merged.read_all(&LoadOptions::new().threads(2)).unwrap();
    assert!(loaded.iter().all(|it| it.as_slice::<f32>().unwrap().iter().all(|it| *it == 21.0)));
    let read: u64 = sources.iter().map(NotingSource::take_len).sum();
    assert_eq!(read, 20 * names.len() as u64 * 2 * 512 * 4);
}
