//! Files of NumPy, PyTorch and GGUF, read into memory beside anamnesis.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anamnesis::F32Out;
use anyhow::{Result, ensure};
use ndarray::ArrayView2;
use ndarray_npy::NpzWriter;
use safetensors_formats::{Options, open};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::load::ALLOWANCE;
use super::{Spec, gguf, limits};
use harness::data::{Data, TestFile};
use harness::files::{Pattern, Sums, checksum};
use harness::sample::{Contender, Goal, Row};

const OURS: &str = "safetensors_formats::open, read_all";
const ANAMNESIS: &str = "anamnesis";

/// The matrices of an archive: 512 MiB of F32.
const COUNT: usize = 64;
const SHAPE: [usize; 2] = [1024, 2048];
const BYTES: u64 = 4 * (COUNT * SHAPE[0] * SHAPE[1]) as u64;

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("read 512 MiB of .npz", |data| row(npz(data)?, BYTES, Options::new(), of_npz)),
        Spec::new("read 512 MiB of a PyTorch archive", |data| {
            row(pytorch(data)?, BYTES, Options::new(), of_pytorch)
        }),
        Spec::new("read 1 GiB of GGUF as blocks", |data| {
            let file = gguf::file(data, gguf::LAYERS)?;
            let bytes = file.path.metadata()?.len();
            row(file, bytes, Options::new().blocks(true), of_gguf)
        }),
        Spec::new("read a layer of GGUF as numbers", |data| {
            let (file, bytes) = numbers(data, &gguf::file(data, 1)?.path)?;
            row(file, bytes, Options::new().dequantize(true), dequantized)
        }),
    ]
}

/// Names and the bytes of tensors, which are memory of their own.
type Tensors = Vec<(String, Vec<u8>)>;

/// Reads all tensors of a file, by us and by a peer.
///
/// `read` is how many bytes the tensors have in memory.
fn row(
    file: TestFile,
    read: u64,
    options: Options,
    peer: fn(&Path) -> Result<Tensors>,
) -> Result<Row> {
    let (path, sum) = (file.path.clone(), file.sums.plain);
    let ours = Contender::ours(OURS, move |watch| {
        let (checkpoint, read) = watch.time(|| -> Result<_> {
            let checkpoint = open(&path, &options)?;
            let read = checkpoint.read_all(&Default::default())?;
            Ok((checkpoint, read))
        })?;
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        let tensors = names.zip(read.iter().map(|buf| buf.bytes()));
        ensure!(checksum(tensors) == sum, "other bytes than were written");
        Ok(())
    });
    let path = file.path.clone();
    let theirs = Contender::peer(ANAMNESIS, move |watch| {
        let tensors = watch.time(|| peer(&path))?;
        ensure!(checksum(tensors) == sum, "other bytes than were written");
        Ok(())
    });
    let path = file.path.clone();
    let limit = Contender::limit("pread into reused buffers", move |watch| {
        watch.time(|| limits::read_whole_into_reused_buffers(&path))
    });
    let goals = [Goal::Faster(ANAMNESIS, 1.0), Goal::Memory(read + ALLOWANCE)];
    let row = Row::new(vec![ours, theirs, limit]).goals(goals).isolated().samples(7);
    Ok(row.bytes(read).memory(2 * read + (64 << 20)).reads(&file.path))
}

fn of_npz(path: &Path) -> Result<Tensors> {
    let arrays = anamnesis::parse_npz(path)?.into_iter();
    Ok(arrays.map(|(name, array)| (name, array.data)).collect())
}

fn of_pytorch(path: &Path) -> Result<Tensors> {
    let parsed = anamnesis::parse_pth(path)?;
    let tensors = parsed.tensors()?.into_iter();
    Ok(tensors.map(|tensor| (tensor.name, tensor.data.into_owned())).collect())
}

fn of_gguf(path: &Path) -> Result<Tensors> {
    let parsed = anamnesis::parse_gguf(path)?;
    let tensors = parsed.tensors();
    Ok(tensors.map(|tensor| (tensor.name.to_owned(), tensor.data.into_owned())).collect())
}

fn dequantized(path: &Path) -> Result<Tensors> {
    let parsed = anamnesis::parse_gguf(path)?;
    let tensors = parsed.tensor_info().iter();
    tensors
        .map(|info| Ok((info.name.clone(), parsed.dequantize_tensor_as::<F32Out>(info)?)))
        .collect()
}

/// A file of GGUF with the checksum of its numbers, on which both agree, and their bytes.
fn numbers(data: &Data, path: &Path) -> Result<(TestFile, u64)> {
    let options = Options::new().dequantize(true);
    let checkpoint = open(path, &options)?;
    let bytes = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
    let TestFile { sums, .. } = data.file_by("gguf-numbers", |_| {
        let read = checkpoint.read_all(&Default::default())?;
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        let sum = checksum(names.zip(read.iter().map(|buf| buf.bytes())));
        ensure!(checksum(dequantized(path)?) == sum, "other numbers by anamnesis");
        Ok(Sums { plain: sum, widened: 0 })
    })?;
    Ok((TestFile { path: path.to_owned(), sums }, bytes))
}

/// The matrices of an archive, and the checksum of all.
fn matrices(mut write: impl FnMut(&str, &[u8]) -> Result<()>) -> Result<Sums> {
    let (mut pattern, mut sum) = (Pattern(1), 0_u64);
    for i in 0..COUNT {
        let name = format!("layers.{i}.weight");
        let bytes = pattern.take(4 * SHAPE[0] * SHAPE[1]);
        write(&name, &bytes)?;
        sum = sum.wrapping_add(checksum([(name, bytes)]));
    }
    Ok(Sums { plain: sum, widened: 0 })
}

fn npz(data: &Data) -> Result<TestFile> {
    data.file_by("matrices.npz", |path| {
        let mut writer = NpzWriter::new(File::create(path)?);
        let sums = matrices(|name, bytes| {
            let numbers: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
            Ok(writer.add_array(name, &ArrayView2::from_shape(SHAPE, &numbers)?)?)
        })?;
        writer.finish()?.sync_all()?;
        Ok(sums)
    })
}

/// An archive as `torch.save` writes it of a dictionary of contiguous tensors.
fn pytorch(data: &Data) -> Result<TestFile> {
    data.file_by("matrices.pt", |path| {
        let mut archive = ZipWriter::new(File::create(path)?);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .with_alignment(64);
        archive.start_file("archive/data.pkl", options)?;
        archive.write_all(&pickle())?;
        let mut number = 0..;
        let sums = matrices(|_, bytes| {
            let key = number.next().unwrap_or(0_usize);
            archive.start_file(format!("archive/data/{key}"), options)?;
            Ok(archive.write_all(bytes)?)
        })?;
        archive.start_file("archive/version", options)?;
        archive.write_all(b"3\n")?;
        archive.finish()?.sync_all()?;
        Ok(sums)
    })
}

/// The pickle of the archive: names, and which member has the numbers of each tensor.
fn pickle() -> Vec<u8> {
    let text =
        |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let number = |number: usize| [&b"J"[..], &(number as u32).to_le_bytes()].concat();
    let [rows, columns] = SHAPE;
    let mut pickle = b"\x80\x02}(".to_vec();
    for i in 0..COUNT {
        let parts: [&[u8]; 13] = [
            &text(&format!("layers.{i}.weight")),
            b"ctorch._utils\n_rebuild_tensor_v2\n((",
            &text("storage"),
            b"ctorch\nFloatStorage\n",
            &text(&i.to_string()),
            &text("cpu"),
            &number(rows * columns),
            b"tQK\0",
            &number(rows),
            &number(columns),
            b"\x86",
            &number(columns),
            b"K\x01\x86\x89ccollections\nOrderedDict\n)RtR",
        ];
        pickle.extend(parts.concat());
    }
    pickle.extend(b"u.");
    pickle
}
