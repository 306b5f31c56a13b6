//! Loading onto the CPU works as without devices of other kinds, and only one file has `unsafe`
//! code for devices.

use std::path::Path;

use candle_core::Device;
use safetensors_candle::load_with;
use safetensors_core::{Dtype, LoadOptions};
use safetensors_testing::files::files_below;

use crate::common::place;

#[test]
fn unsafe_code_is_allowed_in_one_file() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = files_below(&source);
    files.retain(|(_, code)| String::from_utf8_lossy(code).contains("[allow(unsafe_code"));
    assert_eq!(files.iter().map(|(path, _)| path).collect::<Vec<_>>(), ["cuda.rs"]);
}

/// Without the `cuda` feature, candle has a CUDA device that accepts no tensor.
#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use safetensors_testing::files::write_hole;

    use super::*;

    #[test]
    fn a_device_that_takes_nothing_stops_the_load_after_a_batch() {
        const LEN: usize = 1 << 20;
        let (_dir, path) = place("a.safetensors");
        // 1 GiB. Converted, a tensor has 8 MiB.
        write_hole(&path, (0..512).map(|i| (format!("t{i}"), Dtype::BF16, vec![LEN as u64])));

        let read = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&read);
        let options = LoadOptions::new().floats_as(Dtype::F64).progress(move |progress| {
            assert_eq!(progress.bytes_total, 512 * 8 * LEN as u64);
            noted.fetch_max(progress.bytes_done, Ordering::SeqCst);
            ControlFlow::Continue(())
        });
        let cuda = Device::Cuda(candle_core::CudaDevice);
        let error = load_with(&path, &cuda, &options).unwrap_err();
        assert_eq!((error.tensor(), error.file()), (Some("t0"), path.to_str()));
        assert_eq!(read.load(Ordering::SeqCst), 256 << 20);
    }
}
