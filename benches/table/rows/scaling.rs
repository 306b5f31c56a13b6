//! How time grows: with the number of tensors, with bytes, with threads.

use std::rc::Rc;

use anyhow::{Result, ensure};
use safetensors_bridge::header::Header;
use safetensors_bridge::{Limits, LoadOptions};

use super::Spec;
use super::header::parse_row;
use super::load::{mapped, ours_with, reading};
use harness::data::Data;
use harness::files::{Tensor, header_text, two_gib};
use harness::sample::{Contender, Goal, Row};

pub(super) fn rows() -> Vec<Spec> {
    let headers = [100, 1_000, 10_000, 100_000, 1_000_000].map(|count| {
        Spec::new(format!("scaling: header of {count} tensors"), move |data| {
            Ok(parse_row(data, &short_names(count))?.samples(if count < 1_000_000 { 7 } else { 5 }))
        })
    });
    let sizes = [1, 16, 256, 1024].map(|mib| {
        Spec::new(format!("scaling: load {mib} MiB into candle"), move |data| {
            let file =
                data.file(&format!("load-{mib}.safetensors"), &in_tensors_of_one_mib(mib))?;
            let ours = ours_with("safetensors_candle::load", &file, LoadOptions::new());
            Ok(reading(vec![ours, mapped(&file)], &file)?.samples(5))
        })
    });
    let threads = Spec::new("scaling: load 2 GiB into candle by threads", |data| {
        let file = data.file("two-gib.safetensors", &two_gib())?;
        let by = |name, threads| ours_with(name, &file, LoadOptions::new().threads(threads));
        Ok(reading(vec![by("1 thread", 1), by("2 threads", 2)], &file)?.samples(5))
    });
    headers
        .into_iter()
        .chain([Spec::new("scaling: header of 1000000 hostile tensors", hostile)])
        .chain(sizes)
        .chain([threads])
        .collect()
}

/// Tensors with short names, so that a million of them fit the longest header that is allowed.
fn short_names(count: usize) -> Vec<Tensor> {
    (0..count).map(|i| Tensor::bf16(format!("layers.{i}.w"), &[512, 512])).collect()
}

fn in_tensors_of_one_mib(count: usize) -> Vec<Tensor> {
    (0..count).map(|i| Tensor::bf16(format!("layers.{i}.weight"), &[1024, 512])).collect()
}

/// Headers made to be slow to parse. They may take only a small multiple of the time of an ordinary
/// header.
fn hostile(_: &Data) -> Result<Row> {
    const COUNT: usize = 1_000_000;
    let ordinary = header_text(&short_names(COUNT));
    let texts = [
        ("ordinary", ordinary.clone()),
        // A weak hash, or a hash of only the start or end, cannot tell these names apart.
        ("names that differ in the middle", renamed(|i| format!("aaaaaa{i:07}aaaaaa"))),
        (
            "names that differ in two bits",
            renamed(|i| (0..20).map(|bit| if i >> bit & 1 == 1 { 'b' } else { 'a' }).collect()),
        ),
        // The parser's fast path handles none of these.
        ("names with escapes", renamed(|i| format!("\\u0061{i}"))),
        ("last tensor first", last_first()),
        ("never in the canonical form", ordinary.replace(",\"shape\"", ", \"shape\"")),
    ];
    let contenders = texts.into_iter().map(|(name, text)| {
        let limits = Limits::default();
        ensure!(Header::parse_json(text.as_bytes(), &limits)?.len() == COUNT, "{name}");
        let text = Rc::new(text);
        Ok(Contender::ours(name, move |watch| {
            watch.repeat(|| Ok(Header::parse_json(text.as_bytes(), &limits)?))
        }))
    });
    let goals = [
        "names that differ in the middle",
        "names that differ in two bits",
        "names with escapes",
        "last tensor first",
    ];
    let goals = goals
        .into_iter()
        .chain(["never in the canonical form"])
        .map(|name| Goal::Within(name, 4.0));
    Ok(Row::new(contenders.collect::<Result<_>>()?).goals(goals).samples(5))
}

fn renamed(name: impl Fn(usize) -> String) -> String {
    header_text(&(0..1_000_000).map(|i| Tensor::bf16(name(i), &[8])).collect::<Vec<_>>())
}

/// A header whose entries are in the opposite order of their data.
fn last_first() -> String {
    let entries = (0..1_000_000_u64).rev().map(|i| {
        format!(
            r#""layers.{i}.w":{{"dtype":"BF16","shape":[8],"data_offsets":[{},{}]}}"#,
            16 * i,
            16 * i + 16
        )
    });
    format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
}
