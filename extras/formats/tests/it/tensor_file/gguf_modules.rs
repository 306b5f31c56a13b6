//! Scales and true shapes of tensors, from other tensors and keys of a GGUF file.

use safetensors_formats::{ErrorKind, Options};

use super::gguf_file::{F16, F32, Gguf, NVFP4, Q2_0, Q8_0, names, nvfp4, q2_0, q8_0, values};
use super::refused;

#[test]
fn the_scale_of_a_weight_multiplies_its_numbers_and_is_no_tensor_of_them() {
    let file = Gguf::default()
        .with("blk.0.ffn_up.weight", &[1, 64], NVFP4, &nvfp4(2))
        .floats("blk.0.ffn_up.scale", &[1], &[0.25])
        .floats("blk.0.ffn_up.input_scale", &[1], &[7.0])
        .floats("blk.0.ffn_up.bias", &[1], &[5.0]);
    let numbers = file.numbers();
    assert_eq!(names(&numbers), ["blk.0.ffn_up.bias", "blk.0.ffn_up.weight"]);
    assert_eq!(values(&numbers, "blk.0.ffn_up.weight"), [0.25; 64]);

    // As they are stored, all are there.
    assert_eq!(names(&file.open(&Options::new())).len(), 4);
    let blocks = file.open(&Options::new().blocks(true).dequantize(true));
    assert_eq!(names(&blocks).len(), 4);
    let weight = blocks.tensor("blk.0.ffn_up.weight").unwrap().read().unwrap();
    assert_eq!(weight.bytes(), nvfp4(2));
}

#[test]
fn each_expert_has_its_scale_in_any_part_of_the_tensor() {
    let data: Vec<u8> = [0, 40, 80, 10, 50, 90].into_iter().flat_map(q8_0).collect();
    let scales = [0.5, 2.0, -1.0];
    let file =
        Gguf::default().floats("x.scale", &[3], &scales).with("x.weight", &[3, 2, 32], Q8_0, &data);
    let numbers = file.numbers();
    let first = [0, 40, 80, 10, 50, 90];
    let expected: Vec<f32> = (0..192)
        .map(|i| (first[i / 32] + i as u32 % 32) as u8 as i8 as f32 * scales[i / 64])
        .collect();
    assert_eq!(values(&numbers, "x.weight"), expected);
    let tensor = numbers.tensor("x.weight").unwrap();
    for start in 0..3 {
        for end in start + 1..4 {
            for skipped in [0, 3, 31] {
                let part = tensor.slice((start..end, 1.., skipped..)).unwrap().read().unwrap();
                let wanted: Vec<f32> = (start..end)
                    .flat_map(|expert| {
                        expected[expert * 64 + 32 + skipped..][..32 - skipped].iter()
                    })
                    .copied()
                    .collect();
                assert_eq!(part.into_vec::<f32>().unwrap(), wanted);
            }
        }
    }
}

#[test]
fn a_scale_without_a_quantised_weight_is_a_plain_tensor() {
    let file = Gguf::default()
        .floats("plain.weight", &[2], &[1.0, 2.0])
        .floats("plain.scale", &[2], &[3.0, 4.0])
        .floats("alone.scale", &[1], &[3.0])
        .floats("alone.input_scale", &[1], &[3.0])
        .with("q.weight", &[32], Q8_0, &q8_0(0))
        .with("q.more.scale", &[1], F16, &[0, 0]);
    let numbers = file.numbers();
    assert_eq!(names(&numbers).len(), 6);
    assert_eq!(values(&numbers, "plain.weight"), [1.0, 2.0]);
}

#[test]
fn a_weight_with_a_companion_that_is_not_explained_is_refused_by_name() {
    let weight = |shape: &[u64]| {
        let blocks = shape.iter().product::<u64>() as usize / 32;
        Gguf::default().with("m.weight", shape, Q8_0, &q8_0(0).repeat(blocks))
    };
    let flat = weight(&[2, 32]);
    let stacked = weight(&[3, 1, 32]);
    let fours = |count: usize| vec![0; count * 4];
    for (file, says) in [
        (
            flat.clone().with("m.scale", &[1], F16, &[0, 60]),
            "\"m.scale\" should be F32 [1], found F16 [1]",
        ),
        (flat.clone().with("m.scale", &[2], F32, &fours(2)), "should be F32 [1], found F32 [2]"),
        (flat.clone().with("m.scale", &[0], F32, &[]), "should be F32 [1], found F32 [0]"),
        (flat.clone().with("m.scale", &[1, 1], F32, &fours(1)), "found F32 [1, 1]"),
        (flat.clone().with("m.scale", &[32], Q8_0, &q8_0(0)), "found Q8_0 [32]"),
        (flat.clone().with("m.scale", &[1], 99, &fours(1)), "found type 99 [1]"),
        (
            stacked.clone().with("m.scale", &[2], F32, &fours(2)),
            "should be F32 [1] or [3], found F32 [2]",
        ),
        (
            flat.clone().with("m.weight_scale", &[1], F32, &fours(1)),
            "it is not known what \"m.weight_scale\" is for",
        ),
        (
            flat.clone().with("m.zeros", &[2], F32, &fours(2)),
            "it is not known what \"m.zeros\" is for",
        ),
    ] {
        // Whichever comes first.
        let mut turned = file.clone();
        turned.tensors.reverse();
        for file in [file, turned] {
            let error = file.problem("m.weight");
            let start = "a file: tensor \"m.weight\": ";
            assert!(error.starts_with(start) && error.contains(says), "{says}: {error}");
            // The others are read, and listing the file needs no numbers.
            let other = file.clone().floats("other", &[1], &[9.0]);
            assert_eq!(values(&other.numbers(), "other"), [9.0]);
            let listed = file.open(&Options::new());
            assert!(
                listed.files()[0].safetensors().source().stored("m.weight").unwrap().is_quantised
            );
        }
    }
}

#[test]
fn a_scale_in_another_part_of_a_split_file_is_refused() {
    let part = |number: u16, file: Gguf| {
        file.number("split.no", number).number("split.count", 2).number("split.tensors.count", 3)
    };
    let weight = Gguf::default().with("m.weight", &[32], Q8_0, &q8_0(1));
    let rest = |name: &str| Gguf::default().floats(name, &[1], &[2.0]).floats("x", &[1], &[1.0]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-00002.gguf");
    let open = |second: Gguf, options: &Options| {
        std::fs::write(&path, part(0, weight.clone()).bytes()).unwrap();
        let other = dir.path().join("m-00002-of-00002.gguf");
        std::fs::write(other, part(1, second).bytes()).unwrap();
        safetensors_formats::open(&path, options)
    };
    let numbers = Options::new().dequantize(true);
    for name in ["m.scale", "m.weight_scale"] {
        assert_eq!(open(rest(name), &Options::new()).unwrap().len(), 3);
        let error = open(rest(name), &numbers).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadSplit { .. })), "{error}");
        let says = format!("{name}, which changes the numbers of its weight, is in another part");
        assert!(error.to_string().contains(&says), "{error}");
        assert!(error.to_string().contains("llama-gguf-split --merge"), "{error}");
    }
    assert_eq!(open(rest("m.input_scale"), &numbers).unwrap().len(), 3);

    // In the same part it is applied, and the parts still have their numbers of tensors.
    let weight = weight.clone().floats("m.scale", &[1], &[2.0]);
    std::fs::write(&path, part(0, weight).bytes()).unwrap();
    let other = part(1, Gguf::default().floats("x", &[1], &[1.0])).bytes();
    std::fs::write(dir.path().join("m-00002-of-00002.gguf"), other).unwrap();
    let checkpoint = safetensors_formats::open(&path, &numbers).unwrap();
    let read = checkpoint.tensor("m.weight").unwrap().read().unwrap().into_vec::<f32>().unwrap();
    assert_eq!((checkpoint.len(), read[0]), (2, 2.0));
}

#[test]
fn the_shape_of_a_comfyui_tensor_comes_from_its_key() {
    let file = Gguf::default()
        .with("q.weight", &[1, 64], Q8_0, &[q8_0(0), q8_0(32)].concat())
        .shaped("q.weight", &[2, 2, 4, 4])
        .floats("f.weight", &[4], &[1.0, 2.0, 3.0, 4.0])
        .shaped("f.weight", &[2, 2])
        .with("u", &[1, 4], 99, &[0; 8])
        .shaped("u", &[4])
        .floats("empty", &[0], &[])
        .shaped("empty", &[3, 0]);
    let shapes = |options: &Options, name: &str| {
        let checkpoint = file.open(options);
        let stored = checkpoint.files()[0].safetensors().source().stored(name).cloned();
        let stored = stored.map(|stored| stored.shape);
        (checkpoint.tensor(name).unwrap().shape().to_vec(), stored)
    };
    for options in [Options::new(), Options::new().dequantize(true)] {
        let shape = vec![2, 2, 4, 4];
        assert_eq!(shapes(&options, "q.weight"), (shape.clone(), Some(shape)));
        assert_eq!(shapes(&options, "f.weight"), (vec![2, 2], None));
        assert_eq!(shapes(&options, "u"), (vec![32], Some(vec![4])));
        assert_eq!(shapes(&options, "empty"), (vec![3, 0], None));
    }
    // Blocks are the rows that are stored.
    assert_eq!(shapes(&Options::new().blocks(true), "q.weight"), (vec![1, 68], Some(vec![1, 64])));
    assert_eq!(shapes(&Options::new().blocks(true), "f.weight").0, [2, 2]);
    let numbers = file.numbers();
    assert_eq!(values(&numbers, "q.weight"), (0..64).map(|i| i as f32).collect::<Vec<_>>());
    assert!(!numbers.metadata().keys().any(|key| key.starts_with("comfy.")));
}

#[test]
fn a_shape_that_contradicts_the_tensor_is_refused() {
    let file = Gguf::default().floats("w", &[2, 2], &[0.0; 4]);
    let shape = "comfy.gguf.orig_shape.w";
    let dims = |kind: u32, values: &[u64]| {
        let values: Vec<_> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
        file.clone().array(shape, kind, &values)
    };
    let not_dims = format!("{shape} should be at most 8 dimensions, found ");
    for (file, says) in [
        (
            file.clone().shaped("w", &[5]),
            format!(
                "{shape} is [5], which should have as many elements as the stored shape [2, 2]"
            ),
        ),
        (file.clone().shaped("w", &[]), format!("{shape} is [], which")),
        (file.clone().shaped("w", &[0]), format!("{shape} is [0], which")),
        (
            dims(10, &[1 << 40, 1 << 40]),
            format!("{shape} is [1099511627776, 1099511627776], which"),
        ),
        (dims(10, &[u64::MAX, 0]), format!("{shape} is [18446744073709551615, 0], which")),
        (file.clone().shaped("w", &[-2, -2]), format!("{not_dims}[-2,-2]")),
        (file.clone().shaped("w", &[1; 9]), format!("{not_dims}[1,1,1,1,1,1,1,1,1]")),
        (file.clone().shaped("w", &[1; 65]), format!("{not_dims}a longer array")),
        (dims(12, &[2.5_f64.to_bits()]), format!("{not_dims}[2.5]")),
        (file.clone().number(shape, 4), format!("{not_dims}4")),
        (file.clone().shaped("w", &[4]).shaped("w", &[4]), format!("duplicate key \"{shape}\"")),
        (
            file.clone().shaped("v", &[4]),
            "comfy.gguf.orig_shape.v is there, but no tensor v".into(),
        ),
    ] {
        for options in [Options::new(), Options::new().blocks(true)] {
            let error = refused(&file.bytes(), &options);
            assert!(error.contains(&says), "{says}: {error}");
        }
    }
}

#[test]
fn damaged_files_are_an_error_or_other_values() {
    let bytes = Gguf::default()
        .shaped("x.weight", &[3, 4, 16])
        .with("x.weight", &[3, 2, 32], Q8_0, &q8_0(0).repeat(6))
        .floats("x.scale", &[3], &[1.0, 2.0, 3.0])
        .with("new", &[3], 99, &[1; 3])
        .with("small.weight", &[1024], Q2_0, &q2_0(64).repeat(16))
        .floats("small.input_scale", &[1], &[1.0])
        .bytes();
    for at in 0..bytes.len() {
        super::hostile::read_all(bytes[..at].to_vec());
        for change in [0x01, 0x02, 0x20, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            super::hostile::read_all(damaged);
        }
    }
}
