//! Saving: a saved file is read again, by the reference too.
//! Equal tensors give equal bytes, which equal the reference's.

use std::collections::HashSet;
use std::fs;

use safetensors_core::digest::{self, DigestOptions};
use safetensors_core::save::Order;
use safetensors_core::{
    Checkpoint, ErrorKind, LoadOptions, Metadata, SafeTensors, SaveOptions, ShardOptions, save,
    save_sharded, serialize,
};

use crate::input::Input;
use crate::scratch;
use crate::tensors::{self, Tensor};

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let flags = input.byte();
    let order = if flags & 1 != 0 { Order::Given } else { Order::Alignment };
    let align = 8 << input.below(10);
    let max_shard_size = input.u64() % 8192;
    let metadata = tensors::metadata(&mut input, 4);
    let tensors = tensors::some(&mut input, 8);
    let options = SaveOptions::new()
        .order(order)
        .align(align)
        .metadata(metadata.clone())
        .digests(flags & 2 != 0)
        .durable(false);
    let views = || tensors.iter().map(|tensor| (&tensor.name, tensor.view()));

    let mut names = HashSet::new();
    let twice = tensors.iter().any(|tensor| !names.insert(&tensor.name));
    let reserved = names.contains(&"__metadata__".to_owned());
    let file = match serialize(views(), &options) {
        Ok(file) => {
            assert!(!twice && !reserved);
            file
        }
        Err(error) => {
            assert!(twice || reserved, "{error}");
            return;
        }
    };
    assert_eq!(serialize(views(), &options).unwrap(), file);
    let metadata: Metadata = metadata.into_iter().collect();
    is_read_again(&file, &tensors, &metadata, flags & 2 != 0);
    // The reference writes several entries of metadata in random order.
    if order == Order::Alignment && align == 8 && flags & 2 == 0 && metadata.len() <= 1 {
        let theirs = safetensors::SafeTensors::deserialize(&file).unwrap().tensors();
        let metadata = (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect());
        assert_eq!(safetensors::serialize(theirs, metadata).unwrap(), file);
    }
    let parsed = SafeTensors::parse(&file[..]).unwrap();
    assert!(parsed.header().data_start().is_multiple_of(align as u64));
    match order {
        Order::Given => {
            let order = |full: &dyn Fn(usize) -> bool| -> Vec<&String> {
                let kept = tensors.iter().filter(|tensor| full(tensor.data.len()));
                kept.map(|tensor| &tensor.name).collect()
            };
            let found: Vec<_> = parsed.tensors().filter(|tensor| tensor.byte_len() > 0).collect();
            assert!(found.iter().map(|tensor| tensor.name()).eq(order(&|len| len > 0)));
        }
        Order::Alignment => {
            for tensor in parsed.tensors() {
                let alignment = tensor.dtype().alignment() as u64;
                assert!(tensor.info().data_offsets().start.is_multiple_of(alignment));
            }
        }
    }
    if flags & 4 != 0 {
        to_disk(&file, &tensors, &options, max_shard_size);
    }
}

/// The file has the saved tensors, and nothing else; the reference finds the same.
fn is_read_again(
    file: &[u8],
    tensors: &[Tensor],
    metadata: &safetensors_core::Metadata,
    digests: bool,
) {
    let ours = SafeTensors::from_source(file).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(file).unwrap();
    assert_eq!((ours.header().len(), theirs.len()), (tensors.len(), tensors.len()));
    for tensor in tensors {
        assert_eq!(ours.view(&tensor.name).unwrap(), tensor.view());
        let found = theirs.tensor(&tensor.name).unwrap();
        assert_eq!((found.shape(), found.data()), (&tensor.shape[..], &tensor.data[..]));
    }
    if digests {
        let ours = Checkpoint::from_source(file, "bytes").unwrap();
        let verified = digest::verify(&ours, &DigestOptions::new().threads(1)).unwrap();
        assert_eq!((verified[0].checked.len(), verified[0].unrecorded.len()), (tensors.len(), 0));
    } else {
        assert_eq!(ours.metadata(), metadata);
    }
}

/// Saved to a file and in shards, the tensors are the same.
fn to_disk(file: &[u8], tensors: &[Tensor], options: &SaveOptions, max_shard_size: u64) {
    let scratch = scratch::directory();
    let path = scratch.path().join("whole.safetensors");
    let views = || tensors.iter().map(|tensor| (&tensor.name, tensor.view()));
    save(&path, views(), options).unwrap();
    assert_eq!(fs::read(&path).unwrap(), file);

    let directory = scratch.path().join("sharded");
    let options =
        ShardOptions::new().max_shard_size(max_shard_size.into()).save_options(options.clone());
    // Saved twice, because the second save replaces the first.
    for _ in 0..2 {
        match save_sharded(&directory, views(), &options) {
            Ok(saved) => {
                let total: usize = tensors.iter().map(|tensor| tensor.data.len()).sum();
                assert_eq!(saved.total_size, total as u64);
            }
            Err(error) => panic!("{error} ({:?})", error.kind()),
        }
        let checkpoint = Checkpoint::open(&directory).unwrap();
        assert_eq!(checkpoint.len(), tensors.len());
        let names = tensors.iter().map(|tensor| &tensor.name);
        let read = checkpoint.read_named(names, &LoadOptions::new().threads(1)).map_err(|error| {
            // The values of a BOOL tensor are made up, and may be neither 0 nor 1.
            assert!(matches!(error.kind(), ErrorKind::InvalidBool { .. }), "{error}");
        });
        for (tensor, read) in tensors.iter().zip(read.into_iter().flatten()) {
            assert_eq!((read.dtype(), read.shape()), (tensor.dtype, &tensor.shape[..]));
            assert_eq!(read.bytes(), tensor.data);
        }
    }
}
