//! Quantised tensors of a GGUF file, into candle.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Result, ensure};
use candle_core::Device;
use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use safetensors_bridge::candle::gguf::GgufFile;

use super::Spec;
use super::load::{ALLOWANCE, limit};
use harness::data::{Data, TestFile};
use harness::files::{Pattern, Sums, checksum};
use harness::sample::{Contender, Goal, Role, Row};
use harness::system;

const PEER: &str = "candle gguf_file";

/// The layers of a file of 1 GiB.
const LAYERS: usize = 8;

/// The memory for bytes that are lent to candle: a buffer for each of at most eight threads. The
/// largest tensor of the file has fewer bytes.
const BUFFERS: u64 = 8 * (32 << 20);

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("load 1 GiB of GGUF as QTensors", |data| {
            let mut row = row(data, "safetensors_candle::gguf, load", |path| {
                Ok(GgufFile::open(path)?.load(&Device::Cpu)?)
            })?;
            let bytes = row.bytes.unwrap_or_default();
            row.goals.push(Goal::Memory(bytes + BUFFERS + ALLOWANCE));
            Ok(row)
        }),
        Spec::new("load 1 GiB of GGUF as QTensors, mapped", |data| {
            let mut row = row(data, "safetensors_candle::gguf, of a map", |path| {
                Ok(GgufFile::from_source(system::map(path)?, path)?.load(&Device::Cpu)?)
            })?;
            row.goals.push(Goal::AtLeast(PEER, 3.0));
            Ok(row)
        }),
    ]
}

type Load = fn(&Path) -> Result<BTreeMap<String, QTensor>>;

fn row(data: &Data, name: &'static str, ours: Load) -> Result<Row> {
    let file = file(data)?;
    let bytes = file.path.metadata()?.len();
    let ours = loading(Role::Ours, name, &file, ours);
    let peer = loading(Role::Peer, PEER, &file, one_by_one);
    let row = Row::loads(vec![ours, peer, limit(&file)]);
    Ok(Row { bytes: Some(bytes), files: vec![file.path], ..row })
}

/// Reads all tensors as candle's models do.
fn one_by_one(path: &Path) -> Result<BTreeMap<String, QTensor>> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let tensor = |name: &String| Ok((name.clone(), content.tensor(&mut file, name, &Device::Cpu)?));
    content.tensor_infos.keys().map(tensor).collect()
}

/// Times a way to load the file, and checks the tensors.
fn loading(role: Role, name: &'static str, file: &TestFile, load: Load) -> Contender {
    let file = file.clone();
    Contender::new(role, name, move |watch| {
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
fn file(data: &Data) -> Result<TestFile> {
    const PARTS: [(&str, GgmlDType, [usize; 2]); 7] = [
        ("attn_k", GgmlDType::Q4_0, [4096, 4096]),
        ("attn_output", GgmlDType::Q4_0, [4096, 4096]),
        ("attn_q", GgmlDType::Q4_0, [4096, 4096]),
        ("attn_v", GgmlDType::Q8_0, [4096, 4096]),
        ("ffn_down", GgmlDType::Q8_0, [4096, 11008]),
        ("ffn_gate", GgmlDType::Q4_0, [11008, 4096]),
        ("ffn_up", GgmlDType::Q4_0, [11008, 4096]),
    ];
    data.file_by("model.gguf", |path| {
        let (mut tensors, mut pattern) = (BTreeMap::new(), Pattern(1));
        for layer in 0..LAYERS {
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
