//! A part of a weight is read with the bytes of its codes, and of the scales and zero points of the
//! groups that it has elements of; nothing else.

use std::collections::BTreeSet;
use std::ops::Range;

use safetensors_core::checkpoint::Computed;
use safetensors_core::slice::{Index, RankPart, TensorPart};
use safetensors_testing::quantized::raw;
use safetensors_testing::read_at::NotingSource;

use Dtype::{F8_E4M3, F16, F32, I32, U8};

use super::checkpoint;
use crate::support::*;

/// A stored tensor: its name, dtype and shape. All are zeros.
type Stored = (&'static str, Dtype, &'static [usize]);

/// A weight `l.weight`, a part of it, and the bytes of each tensor that the part needs.
struct Case {
    config: &'static str,
    tensors: &'static [Stored],
    /// Tensors that describe the weight. They are read when it is found.
    notes: Vec<(&'static str, TensorBuf)>,
    rows: Range<usize>,
    columns: Range<usize>,
    needed: Vec<(&'static str, Vec<Range<u64>>)>,
}

/// Returns these columns of each of these lines, in bytes.
fn lines(lines: Range<u64>, line: u64, columns: Range<u64>) -> Vec<Range<u64>> {
    lines.map(|at| at * line + columns.start..at * line + columns.end).collect()
}

fn numbers<T: safetensors_core::element::Element>(
    name: &'static str,
    values: &[T],
) -> (&'static str, TensorBuf) {
    (name, TensorBuf::from_vec(vec![values.len()], values.to_vec()).unwrap())
}

fn text(name: &'static str, json: &str) -> (&'static str, TensorBuf) {
    numbers(name, json.as_bytes())
}

/// Weights of 512 columns.
fn cases() -> Vec<Case> {
    vec![
        // Blocks of 128 by 128: the cut goes through two.
        Case {
            config: r#"{"quant_method": "fp8"}"#,
            tensors: &[("l.weight", F8_E4M3, &[256, 512]), ("l.weight_scale_inv", F32, &[2, 4])],
            notes: vec![],
            rows: 130..140,
            columns: 200..300,
            needed: vec![
                ("l.weight", lines(130..140, 512, 200..300)),
                ("l.weight_scale_inv", lines(1..2, 16, 4..12)),
            ],
        },
        // Groups of 32 columns.
        Case {
            config: r#"{"quant_method": "compressed-tensors"}"#,
            tensors: &[("l.weight_packed", I32, &[64, 64]), ("l.weight_scale", F32, &[64, 16])],
            notes: vec![numbers("l.weight_shape", &[64_i64, 512])],
            rows: 3..5,
            columns: 40..72,
            needed: vec![
                ("l.weight_packed", lines(3..5, 256, 20..36)),
                ("l.weight_scale", lines(3..5, 64, 4..12)),
            ],
        },
        // Codes, scales and zero points are stored transposed.
        Case {
            config: r#"{"quant_method": "gptq", "bits": 4, "group_size": 32}"#,
            tensors: &[
                ("l.qweight", I32, &[64, 64]),
                ("l.scales", F16, &[16, 64]),
                ("l.qzeros", I32, &[16, 8]),
            ],
            notes: vec![],
            rows: 8..16,
            columns: 60..128,
            needed: vec![
                ("l.qweight", lines(7..16, 256, 32..64)),
                ("l.scales", lines(1..4, 128, 16..32)),
                ("l.qzeros", lines(1..4, 32, 4..8)),
            ],
        },
        Case {
            config: r#"{"quant_method": "awq", "bits": 4, "group_size": 32}"#,
            tensors: &[
                ("l.qweight", I32, &[512, 8]),
                ("l.scales", F16, &[16, 64]),
                ("l.qzeros", I32, &[16, 8]),
            ],
            notes: vec![],
            rows: 8..16,
            columns: 64..96,
            needed: vec![
                ("l.qweight", lines(64..96, 32, 4..8)),
                ("l.scales", lines(2..3, 128, 16..32)),
                ("l.qzeros", lines(2..3, 32, 4..8)),
            ],
        },
        // Blocks of 64 elements of the flat weight.
        Case {
            config: r#"{"quant_method": "bitsandbytes"}"#,
            tensors: &[("l.weight", U8, &[64 * 256, 1]), ("l.weight.absmax", F32, &[512])],
            notes: vec![
                numbers("l.weight.quant_map", &[0.0_f32; 16]),
                text(
                    "l.weight.quant_state.bitsandbytes__nf4",
                    r#"{"blocksize": 64, "shape": [64, 512]}"#,
                ),
            ],
            rows: 3..4,
            columns: 60..70,
            needed: vec![
                ("l.weight", lines(3..4, 256, 30..35)),
                ("l.weight.absmax", lines(0..1, 0, 24 * 4..26 * 4)),
            ],
        },
        // Two groups in a byte, 256 apart.
        Case {
            config: r#"{"quant_method": "hqq"}"#,
            tensors: &[
                ("l.W_q", U8, &[256, 64]),
                ("l.scale", F32, &[512, 1]),
                ("l.zero", F32, &[512, 1]),
            ],
            notes: vec![
                numbers("l.nbits", &[4_i32]),
                numbers("l.axis", &[1_i32]),
                numbers("l.shape", &[64_i64, 512]),
            ],
            rows: 40..41,
            columns: 10..70,
            needed: vec![
                ("l.W_q", vec![64 * 64 + 10..64 * 64 + 64, 65 * 64..65 * 64 + 6]),
                ("l.scale", lines(320..322, 4, 0..4)),
                ("l.zero", lines(320..322, 4, 0..4)),
            ],
        },
    ]
}

/// Opens the checkpoint of a case, without the reads that find the weight.
fn open(case: &Case) -> (TempDir, Checkpoint<Computed<NotingSource>>, Checkpoint) {
    let zeros = case.tensors.iter().map(|(name, dtype, shape)| (*name, raw(*dtype, shape, &[0])));
    let all: Vec<_> = zeros.chain(case.notes.iter().cloned()).collect();
    let (directory, stored) = checkpoint(Some(case.config), &all);
    let noting = Checkpoint::open_by(stored.files()[0].path(), &Limits::default(), |path| {
        Ok(NotingSource::new(fs::read(path).unwrap()))
    });
    let numbers = noting.unwrap().dequantized().unwrap();
    reads(&numbers);
    (directory, numbers, stored)
}

/// The positions of all bytes that were read since the last call.
fn reads(checkpoint: &Checkpoint<Computed<NotingSource>>) -> BTreeSet<u64> {
    let source = checkpoint.files()[0].safetensors().source().stored();
    let reads = source.take_reads().into_iter();
    reads.flat_map(|(offset, len)| offset..offset + len as u64).collect()
}

/// The positions of these bytes of tensors in the file.
fn needed(stored: &Checkpoint, of: &[(&str, Vec<Range<u64>>)]) -> BTreeSet<u64> {
    let of = of.iter().flat_map(|(name, ranges)| {
        let start = stored.tensor(name).unwrap().file_offset();
        ranges.iter().flat_map(move |range| start + range.start..start + range.end)
    });
    of.collect()
}

#[test]
fn a_slice_reads_the_bytes_of_its_groups() {
    for case in cases() {
        let (_directory, numbers, stored) = open(&case);
        let tensor = numbers.tensor("l.weight").unwrap();
        let slice = tensor.slice((case.rows.clone(), case.columns.clone())).unwrap().max_gap(0);
        assert_eq!(slice.read().unwrap().shape(), [case.rows.len(), case.columns.len()]);
        assert_eq!(reads(&numbers), needed(&stored, &case.needed), "{}", case.config);
    }
}

/// The second of four ranks has the blocks of its columns, and the second of two has the blocks of
/// its rows.
#[test]
fn a_rank_reads_the_bytes_of_its_groups() {
    let case = cases().remove(0);
    let (_directory, numbers, stored) = open(&case);
    for (dim, rank, ranks, codes, scales) in [
        (1, 1, 4, lines(0..256, 512, 128..256), lines(0..2, 16, 4..8)),
        (0, 1, 2, lines(128..256, 512, 0..512), lines(1..2, 16, 0..16)),
        // The cut goes through a block, and both ranks need its scales.
        (0, 0, 4, lines(0..64, 512, 0..512), lines(0..1, 16, 0..16)),
        (0, 1, 4, lines(64..128, 512, 0..512), lines(0..1, 16, 0..16)),
    ] {
        let part = TensorPart::Rank(RankPart::new(dim, rank, ranks));
        let part = numbers.tensor("l.weight").unwrap().slice(part).unwrap();
        part.max_gap(0).read_with(&LoadOptions::new()).unwrap();
        let expected = [("l.weight", codes), ("l.weight_scale_inv", scales)];
        assert_eq!(reads(&numbers), needed(&stored, &expected), "{rank} of {ranks}, dim {dim}");
    }
}

/// Bytes that are kept for several reads of a load go with the last of them, or when the load
/// fails.
#[test]
fn no_load_leaves_codes_in_memory() {
    let mut case = cases().remove(2);
    case.tensors = &[
        ("l.qweight", I32, &[64, 4096]),
        ("l.scales", F16, &[16, 4096]),
        ("l.qzeros", I32, &[16, 512]),
    ];
    let (_directory, numbers, _) = open(&case);
    let tensor = numbers.tensor("l.weight").unwrap();
    // The bytes that are read for a row that nothing has announced.
    let needs_the_file = |row: u64| {
        reads(&numbers);
        let mut bytes = [0; 512 * 4];
        tensor.source().read_exact_at(&mut bytes, tensor.file_offset() + row * 2048).unwrap();
        !reads(&numbers).is_empty()
    };
    tensor.read().unwrap();
    assert!(needs_the_file(0));
    let odd_rows = tensor.slice((Index::from(1..).step(2), ..)).unwrap().max_gap(0);
    odd_rows.read_with(&LoadOptions::new()).unwrap();
    assert!(needs_the_file(1));

    let cancelled = LoadOptions::new().threads(1).progress(|_| ControlFlow::Break(()));
    refused!(tensor.read_with(&cancelled), ErrorKind::Cancelled);
    assert!(!reads(&numbers).is_empty() && needs_the_file(4095));

    let refused = tensor.write_to(&mut |_| Err(ErrorKind::Cancelled.into())).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Cancelled), "{refused}");
    assert!(!reads(&numbers).is_empty() && needs_the_file(4095));
}
