//! A manifest of Zarr is in proportion to the header.

use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
use safetensors_formats::kerchunk::manifest;
use safetensors_formats::{ErrorKind, Result};

/// The manifest of tensors of one byte with these names and shapes, and the length of their file.
fn manifest_of(
    tensors: &[(&str, &[usize])],
    metadata: &[(String, String)],
) -> (Result<String>, usize) {
    let tensors = tensors
        .iter()
        .map(|(name, shape)| (*name, TensorView::from_slice(shape, &[1_u8]).unwrap()));
    let options = SaveOptions::new().metadata(metadata.iter().cloned());
    let file = serialize(tensors, &options).unwrap();
    let len = file.len();
    let checkpoint = Checkpoint::from_source(file, "a.safetensors").unwrap();
    (manifest(&checkpoint, 1 << 24, |_| Ok("/a.safetensors".to_owned())), len)
}

#[test]
fn a_few_names_do_not_make_a_manifest_far_longer_than_the_header() {
    let parts = vec!["a"; 20_000].join("/");
    // In JSON each part is seven times as long.
    let escaped = vec!["\u{1}"; 2500].join("/");
    let long = "a".repeat(100_000);
    let dims = vec![1; 1000];
    let aliases: Vec<_> = (0..5000).map(|i| (format!("z{i}"), "a".to_owned())).collect();
    let aliases_below: Vec<_> = (0..5000).map(|i| (format!("z{i}"), parts.clone())).collect();
    for (tensors, metadata) in [
        ([(&*parts, &[1][..])], &[][..]),
        ([(&*escaped, &[1])], &[]),
        ([(&*parts, &[1])], &aliases_below[..1]),
        ([(&*long, &dims)], &[]),
        ([("a", &dims)], &aliases),
    ] {
        let (found, _) = manifest_of(&tensors, metadata);
        let error = found.unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::OutOfProportion { .. })), "{error}");
        assert!(error.to_string().starts_with("a.safetensors: tensor \""), "{error}");
    }
}

/// Half a megabyte of usual names, with groups, dimensions and aliases.
#[test]
fn usual_names_make_a_manifest() {
    for separator in [".", "/"] {
        let names: Vec<_> = (0..5000)
            .map(|i| format!("model.decoder.layers.{i}.attention.{}.weight", i % 7))
            .map(|name| name.replace('.', separator))
            .collect();
        let tensors: Vec<_> = names.iter().map(|name| (&**name, &[1, 1, 1, 1][..])).collect();
        let aliases: Vec<_> = names.iter().map(|name| (format!("{name}s"), name.clone())).collect();
        let (found, len) = manifest_of(&tensors, &aliases);
        let found = found.unwrap();
        assert!(found.len() < 16 * len, "{} of {len}", found.len());
        assert!(found.contains("/.zarray"), "{found:.100}");
    }
}
