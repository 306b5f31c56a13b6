//! What a source behind a network hears and is asked for.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use safetensors_core::io::Requests;
use safetensors_core::{Checkpoint, Dtype, LoadOptions, ReadAt, SaveOptions, TensorBuf, serialize};

use super::adapter;

/// Bytes, and what was announced and read of them.
struct Remote {
    bytes: Vec<u8>,
    announced: Arc<Mutex<Vec<Range<u64>>>>,
    read: Arc<Mutex<Vec<Range<u64>>>>,
}

impl ReadAt for Remote {
    fn byte_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read.lock().unwrap().push(offset..offset + buf.len() as u64);
        self.bytes.read_exact_at(buf, offset)
    }

    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        self.announced.lock().unwrap().extend(ranges);
    }

    fn requests(&self) -> Option<Requests> {
        Some(Requests::new(16 << 20, 2))
    }
}

#[test]
fn a_merge_asks_for_the_ranges_that_a_load_would() {
    let tensor = |rows: usize| {
        let ones = TensorBuf::from_vec(vec![rows, 512], vec![1.0_f32; rows * 512]).unwrap();
        ones.convert(Dtype::BF16, &Default::default()).unwrap()
    };
    let tensors = [("plain", tensor(4)), ("q.weight", tensor(1024))];
    let bytes = serialize(tensors, &SaveOptions::new()).unwrap();
    for dtype in [Dtype::BF16, Dtype::F32] {
        let (announced, read) = <(Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>)>::default();
        let source = Remote {
            bytes: bytes.clone(),
            announced: Arc::clone(&announced),
            read: Arc::clone(&read),
        };
        let base = Checkpoint::from_source(source, "base").unwrap();
        let range = |name: &str| {
            let tensor = base.tensor(name).unwrap();
            tensor.file_offset()..tensor.file_offset() + tensor.byte_len()
        };
        let all = [range("plain"), range("q.weight")];
        let names: [(&str, &[usize]); 2] =
            [("q.lora_A.weight", &[1, 512]), ("q.lora_B.weight", &[1024, 1])];
        let merged = base.merged_as([adapter(None, &names).unwrap()], |_, _| dtype).unwrap();
        let take = |of: &Mutex<Vec<Range<u64>>>| {
            let mut ranges = std::mem::take(&mut *of.lock().unwrap());
            ranges.sort_by_key(|range| range.start);
            ranges
        };
        take(&read);
        let weight = merged.tensor("q.weight").unwrap();
        let numbers = weight.read().unwrap().convert(Dtype::F32, &Default::default()).unwrap();
        assert_eq!(numbers.as_slice::<f32>().unwrap()[126 * 512 + 1], 1.0 + 127.0 * 2.0);
        assert_eq!((take(&announced), take(&read)), (vec![all[1].clone()], vec![all[1].clone()]));
        merged.read_all(&LoadOptions::new()).unwrap();
        assert_eq!((take(&announced), take(&read)), (all.to_vec(), all.to_vec()));
    }
}
