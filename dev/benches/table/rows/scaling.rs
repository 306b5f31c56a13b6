//! How time and memory grow: with the number of tensors, with bytes, with threads.

use std::rc::Rc;

use anyhow::{Result, ensure};
use safetensors_bridge::header::Header;
use safetensors_bridge::{Limits, LoadOptions};

use super::Spec;
use super::header::parse_row;
use super::load::{candle_load, mapped, ours, ours_with, reading};
use harness::data::Data;
use harness::files::{self, Tensor, header_text, two_gib};
use harness::sample::{Contender, Goal, Row};

pub(super) fn rows() -> Vec<Spec> {
    let headers = [10, 100, 1_000, 10_000, 100_000, 1_000_000].map(|count: usize| {
        Spec::new(format!("scaling: header of {count} tensors"), move |data| {
            let row = parse_row(data, &short_names(count))?;
            let row = row.point("parse a header", "tensors", count as u64);
            Ok(row.samples(if count < 1_000_000 { 7 } else { 5 }))
        })
    });
    let tensors = [10, 100, 1_000, 10_000, 100_000, 1_000_000].map(|count: usize| {
        Spec::new(format!("scaling: load {count} tensors of 64 bytes"), move |data| {
            let file = data.file_by(&format!("small-{count}.safetensors"), |path| {
                let tensors = (0..count).map(|i| Tensor::bf16(format!("t{i}"), &[32]));
                files::write(path, &tensors.collect::<Vec<_>>())
            })?;
            let row = reading(vec![ours(&file), candle_load(&file)], &file)?.samples(5);
            Ok(row.point("load small tensors into candle", "tensors", count as u64))
        })
    });
    let sizes = [1, 32, 1 << 10, 16 << 10, 256 << 10, 1 << 20].map(|kib: usize| {
        let name = if kib < 1 << 10 { format!("{kib} KiB") } else { format!("{} MiB", kib >> 10) };
        Spec::new(format!("scaling: load {name} into candle"), move |data| {
            let file = data.file(&format!("load-{kib}.safetensors"), &of_bytes(kib << 10))?;
            let row = reading(vec![ours(&file), mapped(&file)], &file)?.samples(5);
            Ok(row.point("load into candle", "bytes", (kib << 10) as u64))
        })
    });
    let threads =
        THREADS.into_iter().filter(|(_, number)| *number <= cores()).map(|(name, number)| {
            Spec::new(format!("scaling: load 2 GiB into candle by {name}"), move |data| {
                let file = data.file("two-gib.safetensors", &two_gib())?;
                let ours = ours_with(name, &file, LoadOptions::new().threads(number));
                let row = reading(vec![ours], &file)?.samples(5);
                Ok(row.point("load 2 GiB into candle", "threads", number as u64))
            })
        });
    headers
        .into_iter()
        .chain([Spec::new("scaling: header of 1000000 hostile tensors", hostile)])
        .chain(tensors)
        .chain(sizes)
        .chain(threads)
        .collect()
}

/// The numbers of threads that are tried, where there are as many cores.
const THREADS: [(&str, usize); 5] =
    [("1 thread", 1), ("2 threads", 2), ("4 threads", 4), ("8 threads", 8), ("16 threads", 16)];

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Tensors with short names, so that a million of them fit the longest header that is allowed.
fn short_names(count: usize) -> Vec<Tensor> {
    (0..count).map(|i| Tensor::bf16(format!("layers.{i}.w"), &[512, 512])).collect()
}

/// Tensors of at most 1 MiB, with so many bytes together.
fn of_bytes(bytes: usize) -> Vec<Tensor> {
    let each = bytes.min(1 << 20);
    let count = bytes / each;
    (0..count).map(|i| Tensor::bf16(format!("layers.{i}.weight"), &[each / 2])).collect()
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
