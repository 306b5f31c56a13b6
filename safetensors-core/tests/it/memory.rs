//! Loading takes the memory of the tensors and little more.

use safetensors_core::framework;
use safetensors_core::framework::{Framework, Support};
use safetensors_testing::files::write_hole;
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;

use crate::support::*;

const MIB: u64 = 1 << 20;

#[test]
fn loading_takes_the_tensors_bytes_and_32_mib_at_most() {
    if !is_alone(loading_takes_the_tensors_bytes_and_32_mib_at_most) {
        return;
    }
    let (_dir, path) = place("model.safetensors");
    // 24 large tensors and 1,000 small ones. The file is a hole except for its header.
    let lens = (0..1024_u64).map(|i| if i < 24 { 8 * MIB } else { 16 * 1024 });
    let tensors = lens.enumerate().map(|(i, len)| (format!("t{i}"), Dtype::BF16, vec![len / 2]));
    let end = write_hole(&path, tensors);

    let checkpoint = Checkpoint::open(&path).unwrap();
    let before = peak();
    let plain = checkpoint.read_all(&LoadOptions::new().threads(8)).unwrap();
    let taken = peak() - before;
    assert!((end..end + 32 * MIB).contains(&taken), "{} MiB for {} MiB", taken / MIB, end / MIB);
    drop(plain);

    let wide = checkpoint.read_all(&LoadOptions::new().threads(8).floats_as(Dtype::F32)).unwrap();
    let taken = peak() - before;
    assert!(
        (2 * end..2 * end + 32 * MIB).contains(&taken),
        "{} MiB for {} MiB",
        taken / MIB,
        2 * end / MIB
    );
    drop(wide);

    // A dtype that the framework lacks is widened while it is read, not afterwards.
    let wide = framework::load::<Wide>(&checkpoint, &(), &LoadOptions::new().threads(8)).unwrap();
    let taken = peak() - before;
    assert!(wide.values().all(|buf| buf.dtype() == Dtype::F32));
    assert!(
        (2 * end..2 * end + 32 * MIB).contains(&taken),
        "{} MiB for {} MiB",
        taken / MIB,
        2 * end / MIB
    );
}

/// A framework that lacks BF16 and widens it to F32.
struct Wide;

impl Framework for Wide {
    const NAME: &'static str = "wide";
    type Tensor = TensorBuf;
    type Device = ();

    fn support(dtype: Dtype) -> Support {
        if dtype == Dtype::BF16 { Support::Widened(Dtype::F32) } else { Support::Exact }
    }

    fn from_exact(buf: TensorBuf, (): &()) -> Result<TensorBuf> {
        Ok(buf)
    }

    fn source(tensor: &TensorBuf) -> Result<impl TensorSource + '_> {
        Ok(tensor)
    }
}
