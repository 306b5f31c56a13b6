//! Known values. Digests cover the bytes in the file.

use super::*;

#[test]
fn digests_of_whole_and_piecewise_data_equal_known_values() {
    for (len, xxh3) in KNOWN {
        let bytes = pattern(len);
        assert_eq!(Digest::compute(&bytes).to_string(), xxh3, "{len}");
        assert_eq!(xxh3.parse::<Digest>().unwrap(), Digest::compute(&bytes));
        for piece in [1, 7, 64, 256, 1 << 20] {
            // Hash byte by byte only if the data is short.
            if len / piece < 10_000 {
                let mut hasher = Hasher::default();
                bytes.chunks(piece).for_each(|piece| hasher.update(piece));
                assert_eq!(hasher.finish().to_string(), xxh3, "{len} in pieces of {piece}");
            }
        }
    }
}

#[test]
fn digests_of_tensors_and_files_equal_known_values() {
    let directory = tempdir().unwrap();
    for ((len, xxh3), sha256) in KNOWN.into_iter().zip(SHA256) {
        let path = directory.path().join("model.safetensors");
        save(&path, [("w", u8_tensor(&pattern(len)))], &SaveOptions::new()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found = digest::hash_tensors(&[checkpoint.tensor("w").unwrap()], &DigestOptions::new())
            .unwrap();
        assert_eq!(found[0].to_string(), xxh3);
        let found = digest::hash_files(&checkpoint, &DigestOptions::new()).unwrap();
        assert_eq!(found[0].to_string(), sha256);
    }
}

#[test]
fn a_digest_covers_the_bytes_in_the_file() {
    let values = [1.5_f32, -2.0];
    let buf = TensorBuf::from_vec(vec![2], values.to_vec()).unwrap();
    let file = serialize([("w", buf)], &SaveOptions::new()).unwrap();
    let file = SafeTensors::from_source(file).unwrap();
    let little_endian = values.map(f32::to_le_bytes).concat();
    assert_eq!(
        digest::hash_tensors(&[file.tensor("w").unwrap()], &DigestOptions::new().threads(1))
            .unwrap(),
        [Digest::compute(&little_endian)]
    );
}

#[test]
fn digests_keep_the_requested_order_with_any_number_of_threads() {
    let (directory, _paths) = sharded();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let tensors = ["d", "a", "c", "b", "d"].map(|name| checkpoint.tensor(name).unwrap());
    let expected = [2_000_000, 1000, 17, 0, 2_000_000].map(|len| Digest::compute(&pattern(len)));
    for threads in [0, 1, 2, 16] {
        assert_eq!(
            digest::hash_tensors(&tensors, &DigestOptions::new().threads(threads)).unwrap(),
            expected
        );
    }
    assert_eq!(digest::hash_tensors::<Vec<u8>>(&[], &DigestOptions::new()).unwrap(), []);
}
