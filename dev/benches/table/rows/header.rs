//! The header: parsing it, and finding a tensor in it.

use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Result, ensure};
use memmap2::Mmap;
use safetensors::SafeTensors as Reference;
use safetensors_bridge::Limits;
use safetensors_bridge::header::Header;
use serde::de::IgnoredAny;

use super::Spec;
use harness::data::Data;
use harness::files::{Tensor, header_text};
use harness::sample::{Contender, Goal, Row};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    let parse = [6, 300, 2_326, 100_000].map(|count| {
        Spec::new(format!("header {count} tensors"), move |data| {
            let row = parse_row(data, &model(count))?;
            // Any parser is quick with headers of a few tensors.
            let goal = Goal::Faster(REFERENCE, 10.0);
            Ok(if count < 300 { row } else { row.goals([goal]) })
        })
    });
    let lookup =
        Spec::new("header lookup of each of 2326 tensors by name", |data| lookup_row(data, 2_326));
    parse.into_iter().chain([lookup]).collect()
}

pub(super) const REFERENCE: &str = "safetensors";

/// The first `count` tensors of a transformer with enough layers.
fn model(count: usize) -> Vec<Tensor> {
    let kinds = [
        ("self_attn.q_proj.weight", &[4096, 4096][..]),
        ("self_attn.k_proj.weight", &[1024, 4096]),
        ("self_attn.v_proj.weight", &[1024, 4096]),
        ("self_attn.o_proj.weight", &[4096, 4096]),
        ("mlp.gate_proj.weight", &[14336, 4096]),
        ("mlp.up_proj.weight", &[14336, 4096]),
        ("mlp.down_proj.weight", &[4096, 14336]),
        ("input_layernorm.weight", &[4096]),
        ("post_attention_layernorm.weight", &[4096]),
    ];
    let named = kinds.iter().cycle().take(count).enumerate();
    named
        .map(|(i, (name, shape))| {
            Tensor::bf16(format!("model.layers.{}.{name}", i / kinds.len()), shape)
        })
        .collect()
}

/// A row of both parsers on a file with these tensors, whose data is a hole.
pub(super) fn parse_row(data: &Data, tensors: &[Tensor]) -> Result<Row> {
    let file = Rc::new(file(data, tensors)?);
    let text_len = text(&file)?.len() as u64;
    agree(&file, tensors)?;
    let (a, b, c) = (file.clone(), file.clone(), file);
    Ok(Row::new(vec![
        Contender::ours("Header::parse", move |watch| {
            watch.repeat(|| Ok(Header::parse(&a, &Limits::default())?))
        }),
        Contender::peer(REFERENCE, move |watch| {
            watch.repeat(|| Ok(Reference::deserialize(&b)?.len()))
        }),
        Contender::limit("serde_json into IgnoredAny", move |watch| {
            let text = text(&c)?;
            watch.repeat(|| Ok(serde_json::from_slice::<IgnoredAny>(text)?))
        }),
    ])
    .bytes(text_len))
}

fn lookup_row(data: &Data, count: usize) -> Result<Row> {
    let tensors = model(count);
    let file = Rc::new(file(data, &tensors)?);
    let names: Rc<[String]> = tensors.into_iter().map(|tensor| tensor.name).collect();
    let header = Header::parse(&file, &Limits::default())?;
    let (_, metadata) = Reference::read_metadata(&file)?;
    let map: HashMap<String, usize> = names.iter().cloned().zip(0..).collect();
    let (a, b, c) = (names.clone(), names.clone(), names);
    Ok(Row::new(vec![
        Contender::ours("Header::get", move |watch| {
            watch.repeat(|| Ok(a.iter().filter(|name| header.get(name).is_some()).count()))
        }),
        Contender::peer(REFERENCE, move |watch| {
            watch.repeat(|| Ok(b.iter().filter(|name| metadata.info(name).is_some()).count()))
        }),
        Contender::limit("HashMap of the standard library", move |watch| {
            watch.repeat(|| Ok(c.iter().filter(|name| map.contains_key(name.as_str())).count()))
        }),
    ])
    .goals([Goal::Faster(REFERENCE, 1.0)]))
}

/// A mapped file with these tensors, whose data is a hole.
pub(super) fn file(data: &Data, tensors: &[Tensor]) -> Result<Mmap> {
    let bytes = tensors.iter().map(|tensor| tensor.bytes as u64).sum();
    system::map(&data.header_only("header.safetensors", &header_text(tensors), bytes)?)
}

fn text(file: &Mmap) -> Result<&[u8]> {
    let header = Header::parse(file, &Limits::default())?;
    Ok(&file[8..header.data_start() as usize])
}

/// Checks that both parsers find every tensor in the same place.
fn agree(file: &Mmap, tensors: &[Tensor]) -> Result<()> {
    let header = Header::parse(file, &Limits::default())?;
    let (_, metadata) = Reference::read_metadata(file)?;
    ensure!(header.len() == tensors.len(), "{} tensors", header.len());
    for Tensor { name, shape, .. } in tensors {
        let (ours, theirs) = (header.get(name), metadata.info(name));
        let ours = ours.map(|ours| (ours.shape().to_vec(), ours.data_offsets()));
        let theirs = theirs.map(|theirs| {
            (theirs.shape.clone(), theirs.data_offsets.0 as u64..theirs.data_offsets.1 as u64)
        });
        ensure!(ours == theirs && ours.is_some_and(|(found, _)| found == *shape), "{name}");
    }
    Ok(())
}
