//! Tests that the bytes that burn is lent are the bytes that were checked, even if their owner
//! lends others at the next call.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors_burn::{share_checkpoint, share_tensor};
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, Limits, SaveOptions, TensorView, Widening, serialize,
};

use crate::place;

/// Lends a sound file for some calls. After that it lends another one, at an odd address and with a
/// byte that is not a boolean.
struct Fickle {
    sound: Vec<u8>,
    other: Vec<u8>,
    calls_left: AtomicUsize,
}

impl AsRef<[u8]> for Fickle {
    fn as_ref(&self) -> &[u8] {
        let take = |left: usize| left.checked_sub(1);
        match self.calls_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => &self.sound,
            Err(_) => &self.other[1..],
        }
    }
}

fn file(bools: [u8; 2]) -> Vec<u8> {
    let floats = [1.0_f32, 2.0].map(f32::to_le_bytes).concat();
    let tensors = [
        ("floats", TensorView::new(Dtype::F32, &[2], &floats).unwrap()),
        ("mask", TensorView::new(Dtype::BOOL, &[2], &bools).unwrap()),
    ];
    serialize(tensors, &SaveOptions::new()).unwrap()
}

fn fickle() -> Arc<Checkpoint<Fickle>> {
    let (_dir, path) = place("model.safetensors");
    std::fs::write(&path, file([1, 0])).unwrap();
    let open = |_: &Path| {
        let (sound, other) = (file([1, 0]), [vec![0], file([1, 7])].concat());
        Ok(Fickle { sound, other, calls_left: AtomicUsize::new(usize::MAX) })
    };
    Arc::new(Checkpoint::open_by(&path, &Limits::default(), open).unwrap())
}

#[test]
fn lent_bytes_are_the_checked_bytes() {
    let checkpoint = fickle();
    let sound_for = |calls| {
        let source = checkpoint.files()[0].safetensors().source();
        source.calls_left.store(calls, Ordering::SeqCst);
    };
    let mut refused = 0;
    for calls in 0..6 {
        sound_for(calls);
        match share_tensor(&checkpoint, "mask", Widening::Refuse) {
            Ok(mask) => assert_eq!(mask.as_bytes(), [1, 0], "{calls}"),
            Err(error) => {
                let is_expected =
                    matches!(error.kind(), ErrorKind::InvalidBool { index: 1, found: 7 });
                assert!(is_expected && error.tensor() == Some("mask"), "{error}");
                refused += 1;
            }
        }
        sound_for(calls);
        let floats = share_tensor(&checkpoint, "floats", Widening::Refuse).unwrap();
        assert_eq!(floats.as_slice::<f32>().unwrap(), [1.0, 2.0], "{calls}");
        sound_for(calls);
        if let Ok(all) = share_checkpoint(&checkpoint, Widening::Refuse) {
            assert_eq!(all[0].1.as_slice::<f32>().unwrap(), [1.0, 2.0], "{calls}");
            assert_eq!(all[1].1.as_bytes(), [1, 0], "{calls}");
        }
    }
    assert!(refused > 0, "the other file was never lent");
}
