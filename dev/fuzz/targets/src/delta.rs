//! Deltas: any bytes as a compressed difference, any text as an index, deltas of two tensors.
//!
//! The first byte selects one. An accepted difference must give the same result as a plain loop
//! over the content that zstd decompresses at once.

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::digest::Digest;
use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView, serialize};
use safetensors_delta::{Chain, Delta, Encoding, Error, Options, make};
use serde_json::json;

use crate::input::Input;
use crate::scratch;

const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00000-of-00001.safetensors";

/// The tensors have fewer bytes, so no content that is right has more.
const MOST: usize = 4 + 5 * 256;

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (kind, encoding) = (input.byte(), input.one_of(&[Encoding::Xor, Encoding::Overwrite]));
    match kind {
        0 => {
            let base = old(input.byte().into());
            check(encoding, &base, input.rest());
        }
        1 => {
            let base = old(input.byte().into());
            let (cut, tail) = (input.below(4), input.below(4));
            let mut frame = zstd::bulk::compress(input.rest(), 1).unwrap();
            frame.truncate(frame.len() - cut);
            frame.extend(&[0x28, 0xb5, 0x2f][..tail]);
            check(encoding, &base, &frame);
        }
        2 => {
            let frame = zstd::bulk::compress(&[1; 8], 1).unwrap();
            let files = store(&frame, &Digest::compute(&[0; 8]).to_string(), input.rest().to_vec());
            let opened = shown(Delta::open_in(files, "", &Limits::default()));
            if let Some(chain) = opened.and_then(|delta| shown(Chain::new([delta]))) {
                shown(chain.verify(&checkpoint(&[0; 8]), &Options::new()));
            }
        }
        _ => round_trip(encoding, &mut input),
    }
}

fn old(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7) as u8).collect()
}

/// Returns the files of a delta that changes `w`.
fn store(frame: &[u8], checksum: &str, index: Vec<u8>) -> MemoryStore {
    let shape = [frame.len()];
    let tensors = [("w", TensorView::from_slice(&shape, frame).unwrap())];
    let file = serialize(tensors, &SaveOptions::new().metadata([("w", checksum)])).unwrap();
    MemoryStore::from_iter([(SHARD, file), (INDEX, index)])
}

fn checkpoint(bytes: &[u8]) -> Checkpoint<Vec<u8>> {
    let shape = [bytes.len()];
    let tensors = [("w", TensorView::from_slice(&shape, bytes).unwrap())];
    Checkpoint::from_source(serialize(tensors, &SaveOptions::new()).unwrap(), "base").unwrap()
}

/// The result, unless it is an error, which can be shown.
fn shown<T>(result: Result<T, Error>) -> Option<T> {
    result.map_err(|error| assert!(!error.to_string().chars().any(char::is_control))).ok()
}

/// Applies a compressed difference with the checksum of a plain loop's result.
fn check(encoding: Encoding, base: &[u8], frame: &[u8]) {
    let content = zstd::bulk::decompress(frame, MOST).ok();
    let expected = content.and_then(|content| apply(encoding, base, &content));
    let checksum = Digest::compute(expected.as_deref().unwrap_or_default()).to_string();
    let index = json!({
        "metadata": {
            "version": "1", "base_version": "0", "delta_encoding": encoding.to_string(),
            "compression_format": "zstd", "checksum_format": "xxh3-128",
        },
        "weight_map": { "w": SHARD },
    });
    let files = store(frame, &checksum, index.to_string().into_bytes());
    let delta = shown(Delta::open_in(files, "", &Limits::default())).unwrap();
    let is_sound = shown(delta.verify()).is_some();
    let chain = Chain::new([delta]).unwrap();
    let is_applied = shown(chain.verify(&checkpoint(base), &Options::new())).is_some();
    if is_applied {
        assert!(expected.is_some(), "a difference that no loop applies is accepted");
        // Without its base, only the header limits the length of a frame's content.
        let has_size = encoding == Encoding::Overwrite || frame[4] & 0xe0 != 0;
        assert!(is_sound || !has_size, "what can be applied is not sound without its base");
    } else if expected.is_some() {
        // A frame that fills the tensor has the content that zstd itself decompresses.
        let whole = zstd::zstd_safe::find_frame_compressed_size(frame) == Ok(frame.len());
        let is_skipped = frame.get(1..4) == Some(&[0x2a, 0x4d, 0x18]);
        assert!(!whole || is_skipped || has_more(frame), "a sound difference is refused");
    }
}

/// Returns `true` if the header of a frame asks for more than we give it: a dictionary or a large
/// window.
fn has_more(frame: &[u8]) -> bool {
    let flags = frame.get(4).copied().unwrap_or_default();
    flags & 3 != 0 || flags & 0x20 == 0 && frame.get(5).is_some_and(|window| window >> 3 >= 13)
}

/// Returns a tensor after a difference, if it can be applied.
fn apply(encoding: Encoding, base: &[u8], content: &[u8]) -> Option<Vec<u8>> {
    let mut new = base.to_vec();
    if encoding == Encoding::Xor {
        new.iter_mut().zip(content).for_each(|(byte, other)| *byte ^= other);
        return (content.len() == base.len()).then_some(new);
    }
    let number = |at: usize| {
        let bytes = content.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().unwrap()) as usize)
    };
    let count = number(0)?;
    if count.checked_mul(5)?.checked_add(4)? != content.len() {
        return None;
    }
    let mut before = None;
    for i in 0..count {
        let position = number(4 + 4 * i)?;
        *new.get_mut(position)? = content[4 + 4 * count + i];
        if before.replace(position).is_some_and(|before| before >= position) {
            return None;
        }
    }
    Some(new)
}

/// The delta of two tensors makes the second of the first.
fn round_trip(encoding: Encoding, input: &mut Input<'_>) {
    let len = usize::from(input.byte());
    let (old, new) = (input.filled(len), input.filled(len));
    let (directory, base) = (scratch::directory(), checkpoint(&old));
    let path = directory.path().join("delta");
    let options = Options::new().encoding(encoding).durable(false);
    // Another shape needs the tensor whole.
    let is_whole = new.first().is_some_and(|byte| byte % 2 == 1);
    let shape = if is_whole { &[1, len][..] } else { &[len] };
    let tensors = [("w", TensorView::from_slice(shape, &new).unwrap())];
    let delta = make(&base, tensors, &path, &options).unwrap();
    assert_eq!(delta.tensors().count(), usize::from(is_whole || old != new));
    delta.verify().unwrap();
    Chain::new([delta]).unwrap().verify(&base, &options).unwrap();
    assert!(Checkpoint::open(&path).is_err());
}
