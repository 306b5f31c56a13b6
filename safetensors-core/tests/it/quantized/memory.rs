//! Loading quantised weights takes the memory of the numbers and little more.

use safetensors_testing::files::write_hole;
use safetensors_testing::memory::{growth, resident};
use safetensors_testing::process::is_alone;

use super::write_config;
use crate::support::*;

const MIB: u64 = 1 << 20;

/// Weights that are stored transposed need the most, because much of a weight is read at once.
#[test]
fn numbers_take_their_bytes_and_32_mib_at_most() {
    if !is_alone(numbers_take_their_bytes_and_32_mib_at_most) {
        return;
    }
    let dir = tempdir().unwrap();
    write_config(dir.path(), Some(r#"{"quant_method": "awq", "version": "gemm"}"#));
    let path = dir.path().join("model.safetensors");
    let (inputs, outputs) = (4096, 6144);
    // Three panels, each with scales for groups of 64.
    let tensors = [
        ("up.qweight", Dtype::I32, vec![inputs, outputs / 8]),
        ("up.qzeros", Dtype::I32, vec![inputs / 64, outputs / 8]),
        ("up.scales", Dtype::F16, vec![inputs / 64, outputs]),
        ("down.qweight", Dtype::I32, vec![inputs, outputs / 8]),
        ("down.qzeros", Dtype::I32, vec![inputs / 64, outputs / 8]),
        ("down.scales", Dtype::F16, vec![inputs / 64, outputs]),
    ];
    write_hole(&path, tensors.map(|(name, dtype, shape)| (name.to_owned(), dtype, shape)));
    let checkpoint = Checkpoint::open(&path).unwrap().dequantized().unwrap();
    for (dtype, size, threads) in [(Dtype::BF16, 2, 8), (Dtype::F32, 4, 2)] {
        let options = LoadOptions::new().threads(threads).floats_as(dtype);
        let (read, taken) = growth(resident(), || checkpoint.read_all(&options).unwrap());
        let bytes = 2 * size * inputs * outputs;
        assert!(read.iter().all(|buf| buf.bytes().iter().all(|&byte| byte == 0)));
        let allowed = bytes..bytes + 32 * MIB;
        assert!(allowed.contains(&taken), "{} MiB for {} MiB", taken / MIB, bytes / MIB);
    }
}
