//! A manifest of Zarr is in proportion to the header.

use std::io;

use safetensors_core::ranks::RankRules;
use safetensors_core::{
    Checkpoint, ErrorKind as CoreKind, ReadAt, Rewrite, SaveOptions, ShardOptions, TensorView,
    serialize,
};
use safetensors_formats::kerchunk::manifest;
use safetensors_formats::{ErrorKind, Result};

/// Returns the manifest of tensors with one byte, these names and shapes, and the length of their
/// file.
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
fn parts_of_tensors_have_no_positions() {
    let directory = tempfile::tempdir().unwrap();
    let file =
        serialize([("w", TensorView::from_slice(&[4], &[1_u8; 4]).unwrap())], &SaveOptions::new());
    let whole = Checkpoint::from_source(file.unwrap(), "a.safetensors").unwrap();
    let rewrite = Rewrite::from_checkpoint(&whole);
    let rules = RankRules::new().parse_rule("w=uneven:0").unwrap();
    let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new()).unwrap();
    rewrite.save_ranks(directory.path(), &plan, "1", &ShardOptions::new()).unwrap();
    let joined = Checkpoint::open(directory.path()).unwrap();
    let error = manifest(&joined, 1 << 24, |path| Ok(path.display().to_string())).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::Ranks { .. }), "{error}");
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

/// A file of zeros behind its header.
struct Sparse {
    header: Vec<u8>,
    byte_len: u64,
}

impl Sparse {
    /// Tensors of bytes with these names, each of this shape, and other names of the first.
    fn new(names: &[String], shape: [u64; 2], aliases: &[String]) -> Self {
        let len = shape[0] * shape[1];
        let tensors = (0..).zip(names).map(|(at, name)| {
            let range = [at * len, (at + 1) * len];
            format!(
                "\"{name}\":{{\"dtype\":\"U8\",\"shape\":{shape:?},\"data_offsets\":{range:?}}}"
            )
        });
        let aliases = aliases.iter().map(|alias| format!("\"{alias}\":\"{}\"", names[0]));
        let metadata = format!("\"__metadata__\":{{{}}}", aliases.collect::<Vec<_>>().join(","));
        let entries: Vec<_> = [metadata].into_iter().chain(tensors).collect();
        let mut text = format!("{{{}}}", entries.join(",")).into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let header = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
        let byte_len = header.len() as u64 + names.len() as u64 * len;
        Self { header, byte_len }
    }

    fn manifest(self) -> Result<String> {
        let checkpoint = Checkpoint::from_source(self, "a.safetensors")?;
        manifest(&checkpoint, 1 << 24, |_| Ok("s3://bucket/a.safetensors".to_owned()))
    }
}

impl ReadAt for Sparse {
    fn byte_len(&self) -> u64 {
        self.byte_len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        buf.fill(0);
        let header = self.header.get(offset as usize..).unwrap_or_default();
        let len = header.len().min(buf.len());
        buf[..len].copy_from_slice(&header[..len]);
        Ok(())
    }
}

#[test]
fn data_does_not_pay_for_groups_or_other_names() {
    let parts = vec!["a"; 8000].join("/");
    let names: Vec<_> = (0..500).map(|i| format!("z{i}")).collect();
    for (case, file) in [
        ("groups", Sparse::new(&[parts], [1 << 20, 1 << 10], &[])),
        // A prime number of rows, so each has a chunk for every row.
        ("other names", Sparse::new(&["a".into()], [4093, 1 << 18], &names)),
    ] {
        let error = file.manifest().map(|text| text.len()).expect_err(case);
        assert!(
            matches!(error.other(), Some(ErrorKind::OutOfProportion { .. })),
            "{case}: {error}"
        );
    }
}

/// A terabyte.
#[test]
fn data_pays_for_its_chunks() {
    let names: Vec<_> = (0..512).map(|i| format!("model.layers.{i}.mlp.down.weight")).collect();
    let found = Sparse::new(&names, [1 << 12, 1 << 19], &[]).manifest().unwrap();
    assert_eq!(found.matches("s3://").count(), 512 * 128);
}
