//! Loading onto the CPU works as without devices of other kinds, and only one file has `unsafe`
//! code for devices.

use std::path::Path;

use candle_core::Device;
use safetensors_candle::load_with;
use safetensors_core::{Dtype, LoadOptions};

use crate::common::place;

#[test]
fn unsafe_code_is_allowed_in_one_file() {
    fn allowing(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(allowing(&path));
            } else if std::fs::read_to_string(&path).unwrap().contains("#![allow(unsafe_code")
                || std::fs::read_to_string(&path).unwrap().contains("#[allow(unsafe_code")
            {
                found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
        found
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(allowing(&source), ["cuda.rs"]);
}

/// Without the `cuda` feature, candle has a CUDA device that accepts no tensor.
#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_device_that_takes_nothing_stops_the_load_after_a_batch() {
        const LEN: usize = 1 << 20;
        let (_dir, path) = place("a.safetensors");
        // A sparse file of 1 GiB: only the header has data. Converted, a tensor has 8 MiB.
        let entries: Vec<_> = (0..512)
            .map(|i| {
                let (begin, end) = (i * 2 * LEN, (i + 1) * 2 * LEN);
                format!(
                    r#""t{i}":{{"dtype":"BF16","shape":[{LEN}],"data_offsets":[{begin},{end}]}}"#
                )
            })
            .collect();
        let json = format!("{{{}}}", entries.join(","));
        let header = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
        std::fs::write(&path, &header).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len((header.len() + 512 * 2 * LEN) as u64).unwrap();

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
