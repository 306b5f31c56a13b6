//! Quantised tensors of a GGUF file, into candle.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use anyhow::{Result, ensure};
use candle_core::Device;
use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use safetensors_bridge::candle::gguf::GgufFile;

use super::load::ALLOWANCE;
use super::{Spec, limits};
use harness::data::{Data, TestFile};
use harness::files::{Pattern, Sums, checksum};
use harness::sample::{Contender, Goal, Row, Watch};
use harness::system;

const PEER: &str = "candle gguf_file";

/// The layers of a file of 1 GiB.
pub(super) const LAYERS: usize = 8;

/// The memory for what is lent to candle, in bytes: a buffer for each of at most eight threads, and
/// the largest tensor of the file has fewer.
const BUFFERS: u64 = 8 * (32 << 20);

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("load 1 GiB of GGUF as QTensors", |data| {
            let all = |path: &Path| Ok(GgufFile::open(path)?.load(&Device::Cpu)?);
            let row =
                row(data, Contender::ours("safetensors_candle::gguf, load", loading(data, all)?))?;
            let bytes = row.bytes.unwrap_or_default();
            Ok(row.goals([Goal::Memory(bytes + BUFFERS + ALLOWANCE)]))
        }),
        Spec::new("the same, mapped", |data| {
            let all = |path: &Path| {
                Ok(GgufFile::from_source(system::map(path)?, path)?.load(&Device::Cpu)?)
            };
            let row = row(
                data,
                Contender::ours("safetensors_candle::gguf, of a map", loading(data, all)?),
            )?;
            Ok(row.goals([Goal::Faster(PEER, 3.0)]))
        }),
        Spec::new("the same one by one, as candle's from_gguf does", |data| {
            let each = |path: &Path| {
                let file = GgufFile::open(path)?;
                one_by_one(&file.content()?, &mut file.reader())
            };
            row(
                data,
                Contender::ours("candle gguf_file, of GgufFile::reader", loading(data, each)?),
            )
        }),
    ]
}

fn row(data: &Data, ours: Contender) -> Result<Row> {
    let file = file(data, LAYERS)?;
    let bytes = file.path.metadata()?.len();
    let candle = |path: &Path| {
        let mut file = File::open(path)?;
        one_by_one(&Content::read(&mut file)?, &mut file)
    };
    let path = file.path.clone();
    let limit = Contender::limit("pread into reused buffers", move |watch| {
        watch.time(|| limits::read_whole_into_reused_buffers(&path))
    });
    let contenders = vec![ours, Contender::peer(PEER, loading(data, candle)?), limit];
    let row = Row::new(contenders).isolated().bytes(bytes).memory(2 * bytes).samples(7);
    Ok(row.reads(&file.path))
}

/// Reads all tensors as candle's models do.
fn one_by_one<R: Read + Seek>(
    content: &Content,
    reader: &mut R,
) -> Result<BTreeMap<String, QTensor>> {
    let names = content.tensor_infos.keys();
    names.map(|name| Ok((name.clone(), content.tensor(reader, name, &Device::Cpu)?))).collect()
}

/// Times a way to load the file, and checks what it loads.
fn loading(
    data: &Data,
    load: impl Fn(&Path) -> Result<BTreeMap<String, QTensor>> + 'static,
) -> Result<impl FnMut(&mut Watch) -> Result<()> + 'static> {
    let file = file(data, LAYERS)?;
    Ok(move |watch: &mut Watch| {
        let tensors = watch.time(|| load(&file.path))?;
        ensure!(sum(&tensors)? == file.sums.plain, "other bytes than were written");
        Ok(())
    })
}

fn sum(tensors: &BTreeMap<String, QTensor>) -> Result<u64> {
    let bytes = tensors.iter().map(|(name, tensor)| Ok((name, tensor.data()?)));
    Ok(checksum(bytes.collect::<Result<Vec<_>>>()?))
}

/// Layers of a Llama with 7 billion parameters: most are Q4_0, and a quarter is Q8_0.
pub(super) fn file(data: &Data, layers: usize) -> Result<TestFile> {
    const PARTS: [(&str, GgmlDType, [usize; 2]); 7] = [
        ("attn_k", GgmlDType::Q4_0, [4096, 4096]),
        ("attn_output", GgmlDType::Q4_0, [4096, 4096]),
        ("attn_q", GgmlDType::Q4_0, [4096, 4096]),
        ("attn_v", GgmlDType::Q8_0, [4096, 4096]),
        ("ffn_down", GgmlDType::Q8_0, [4096, 11008]),
        ("ffn_gate", GgmlDType::Q4_0, [11008, 4096]),
        ("ffn_up", GgmlDType::Q4_0, [11008, 4096]),
    ];
    data.file_by(&format!("model-{layers}.gguf"), |path| {
        let (mut tensors, mut pattern) = (BTreeMap::new(), Pattern(1));
        for layer in 0..layers {
            for (part, dtype, shape) in PARTS {
                let len = shape[0] * shape[1] / dtype.block_size() * dtype.type_size();
                let blocks = Cow::Owned(pattern.take(len));
                let storage = QStorage::from_data(blocks, &Device::Cpu, dtype)?;
                let name = format!("blk.{layer}.{part}.weight");
                tensors.insert(name, QTensor::new(storage, shape.as_slice())?);
            }
        }
        let named: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut file = File::create(path)?;
        gguf_file::write(&mut file, &[], &named)?;
        file.sync_all()?;
        Ok(Sums { plain: sum(&tensors)?, widened: 0 })
    })
}
