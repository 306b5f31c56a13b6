//! How time and memory grow: with the number of tensors, with bytes, and with the rest of a file
//! that a caller does not ask for.

use std::rc::Rc;

use anyhow::{Result, ensure};
use safetensors::SafeTensors as Reference;
use safetensors_bridge::header::Header;
use safetensors_bridge::{Checkpoint, Limits};
use serde::de::IgnoredAny;

use super::Spec;
use super::load::{candle_load, equal, mapped, ours, reading};
use harness::data::Data;
use harness::files::{Tensor, header_text};
use harness::sample::{Contender, Goal, Point, Row};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    let headers = [10, 100, 1_000, 10_000, 100_000, 1_000_000].map(|count: usize| {
        Spec::new(format!("scaling: header of {count} tensors"), move |data| header(data, count))
    });
    let tensors = [10, 100, 1_000, 10_000, 100_000, 1_000_000].map(|count: usize| {
        Spec::new(format!("scaling: load {count} tensors of 64 bytes"), move |data| {
            let file = data.file(&format!("small-{count}.safetensors"), &equal(count, 32))?;
            let row = reading(vec![ours(&file), candle_load(&file)], &file)?;
            let row = Row { goals: vec![], ..row };
            Ok(point(row, "load small tensors into candle", "tensors", count as u64))
        })
    });
    let sizes = [1, 32, 1 << 10, 16 << 10, 256 << 10, 1 << 20].map(|kib: usize| {
        Spec::new(format!("scaling: load {} into candle", size(kib as u64)), move |data| {
            // Tensors of at most 1 MiB.
            let each = kib.min(1 << 10);
            let tensors = equal(kib / each, each << 9);
            let file = data.file(&format!("load-{kib}.safetensors"), &tensors)?;
            let row = reading(vec![ours(&file), mapped(&file)], &file)?;
            let row = Row { goals: vec![], ..row };
            Ok(point(row, "load into candle", "bytes", (kib << 10) as u64))
        })
    });
    let slices = [1, 32, 1 << 10, 8 << 10, 64 << 10].map(|mib: u64| {
        Spec::new(format!("scaling: open, read 1 MiB of {}", size(mib << 10)), move |data| {
            slice(data, mib)
        })
    });
    headers.into_iter().chain(tensors).chain(sizes).chain(slices).collect()
}

fn size(kib: u64) -> String {
    match kib {
        gib if gib >= 1 << 20 => format!("{} GiB", gib >> 20),
        mib if mib >= 1 << 10 => format!("{} MiB", mib >> 10),
        kib => format!("{kib} KiB"),
    }
}

fn point(row: Row, family: &'static str, unit: &'static str, amount: u64) -> Row {
    Row { point: Some(Point { family: family.into(), unit, amount }), samples: 5, ..row }
}

/// Both parsers on a header, which describes data that is a hole.
fn header(data: &Data, count: usize) -> Result<Row> {
    // A million short names fit the longest header that is allowed.
    let tensors = (0..count).map(|i| Tensor::bf16(format!("layers.{i}.w"), &[512, 512]));
    let text = header_text(&tensors.collect::<Vec<_>>());
    let path = data.header_only("header.safetensors", &text, (count as u64) << 19)?;
    let file = Rc::new(system::map(&path)?);
    let limits = Limits::default();
    ensure!(Header::parse(&file, &limits)?.len() == count, "fewer tensors");
    ensure!(Reference::deserialize(&file)?.len() == count, "the peer finds fewer");
    let bytes = text.len() as u64;
    let for_peer = file.clone();
    let contenders = vec![
        Contender::ours("Header::parse", move |watch| {
            watch.repeat(|| Ok(Header::parse(&file, &limits)?))
        }),
        Contender::peer("safetensors", move |watch| {
            watch.repeat(|| Ok(Reference::deserialize(&for_peer)?.len()))
        }),
        Contender::limit("serde_json into IgnoredAny", move |watch| {
            watch.repeat(|| Ok(serde_json::from_str::<IgnoredAny>(&text)?))
        }),
    ];
    // Any parser is quick with headers of a few tensors.
    let goals = if count < 1_000 { vec![] } else { vec![Goal::AtLeast("safetensors", 10.0)] };
    let row = Row { goals, bytes: Some(bytes), ..Row::new(contenders) };
    Ok(point(row, "parse a header", "tensors", count as u64))
}

/// Returns the first MiB of the last tensor of a sparse file.
fn slice(data: &Data, mib: u64) -> Result<Row> {
    const ROWS: usize = 1 << 10;
    let each = mib.min(256);
    let tensors =
        (0..mib / each).map(|i| Tensor::f32(format!("t{i}"), &[(each as usize) << 10, 256]));
    let header = header_text(&tensors.collect::<Vec<_>>());
    let path = data.header_only(&format!("sparse-{mib}.safetensors"), &header, mib << 20)?;
    let name = format!("t{}", mib / each - 1);
    let (for_peer, of_peer) = (path.clone(), name.clone());
    let contenders = vec![
        Contender::ours("Checkpoint::open, LazyTensor::slice, read", move |watch| {
            watch.repeat(|| {
                let read = Checkpoint::open(&path)?.tensor(&name)?.slice((0..ROWS, ..))?.read()?;
                ensure!(read.bytes().len() == 1 << 20, "another length");
                Ok(read)
            })
        }),
        Contender::peer("safetensors, mapped, and copied", move |watch| {
            watch.repeat(|| {
                let map = system::map(&for_peer)?;
                Ok(Reference::deserialize(&map)?.tensor(&of_peer)?.data()[..1 << 20].to_vec())
            })
        }),
    ];
    Ok(point(Row::new(contenders), "open, read 1 MiB of a sparse file", "bytes", mib << 20))
}
