//! How time and memory grow with what a caller does not ask for: the rest of a large file, other
//! shards, other files of a directory, older epochs.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use candle_core::Device;
use safetensors::SafeTensors as Reference;
use safetensors_bridge::Checkpoint;
use safetensors_burn::train::Epochs;

use super::Spec;
use super::load::verify;
use super::training::small_epoch;
use harness::data::{Data, TestFile};
use harness::files::{self, Sums, Tensor, header_text};
use harness::sample::{Contender, Row};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    let files = [1, 2, 4, 8, 16, 32, 64].map(|count| {
        Spec::new(format!("scaling: load 256 MiB in {count} files into candle"), move |data| {
            in_files(data, count)
        })
    });
    let shards = [1, 10, 100, 1000].map(|count| {
        Spec::new(format!("scaling: open a checkpoint of {count} shards"), move |data| {
            shards(data, count)
        })
    });
    let others = [1, 100, 1000, 10_000, 100_000].map(|count| {
        Spec::new(format!("scaling: open a directory with {count} other files"), move |data| {
            directory(data, count)
        })
    });
    let epochs = [1, 10, 100, 1000].map(|count| {
        Spec::new(format!("scaling: the newest of {count} epochs"), move |data| epochs(data, count))
    });
    let slices = [1, 32, 1 << 10, 8 << 10, 64 << 10].map(|mib: u64| {
        Spec::new(format!("scaling: open, read 1 MiB of {}", size(mib << 20)), move |data| {
            slice(data, mib << 20)
        })
    });
    let pieces = [1, 32, 1 << 10, 32 << 10, 1 << 20, 8 << 20, 64 << 20].map(|kib: u64| {
        Spec::new(format!("scaling: read {} piece by piece, cold", size(kib << 10)), move |data| {
            pieces(data, kib << 10)
        })
    });
    // The last ones leave nothing of other files in the page cache.
    let families = files.into_iter().chain(shards).chain(others).chain(epochs).chain(slices);
    families.chain(pieces).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        gib if gib >= 1 << 30 => format!("{} GiB", gib >> 30),
        mib if mib >= 1 << 20 => format!("{} MiB", mib >> 20),
        kib => format!("{} KiB", kib >> 10),
    }
}

/// A directory of shards with an index, each of `tensors` tensors of this many bytes.
fn sharded(data: &Data, count: usize, tensors: usize, bytes: usize) -> Result<TestFile> {
    let name = format!("shards-{count}-{tensors}-{bytes}");
    data.file_by(&name, |directory| {
        fs::create_dir(directory)?;
        let (mut sums, mut map) = (Sums { plain: 0, widened: 0 }, serde_json::Map::new());
        for shard in 0..count {
            let file = format!("model-{:05}-of-{count:05}.safetensors", shard + 1);
            let name = |i| format!("layers.{shard}.{i}.weight");
            let of_shard: Vec<_> =
                (0..tensors).map(|i| Tensor::bf16(name(i), &[bytes / 2])).collect();
            let written = files::write(&directory.join(&file), &of_shard)?;
            sums.plain = sums.plain.wrapping_add(written.plain);
            sums.widened = sums.widened.wrapping_add(written.widened);
            map.extend(of_shard.into_iter().map(|tensor| (tensor.name, file.clone().into())));
        }
        let index = serde_json::json!({
            "metadata": { "total_size": count * tensors * bytes }, "weight_map": map,
        });
        fs::write(directory.join("model.safetensors.index.json"), index.to_string())?;
        Ok(sums)
    })
}

/// The files of tensors in a directory, by name.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let mut files = entries.collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "safetensors"));
    files.sort();
    Ok(files)
}

fn in_files(data: &Data, count: usize) -> Result<Row> {
    const BYTES: usize = 256 << 20;
    let TestFile { path, sums } = sharded(data, count, (BYTES / count) >> 20, 1 << 20)?;
    let paths = files_in(&path)?;
    let (read, mapped) = (paths.clone(), paths);
    let contenders = vec![
        Contender::ours("safetensors_candle::load", move |watch| {
            let tensors = watch.time(|| safetensors_candle::load(&path, &Device::Cpu))?;
            verify(tensors.iter(), sums.plain)
        }),
        Contender::peer(super::load::MAPPED, move |watch| {
            let (_files, tensors) = watch.time(|| -> Result<_> {
                let files = system::candle_map_all(&mapped)?;
                let tensors = files.tensors().into_iter().map(|(name, _)| {
                    let tensor = files.load(&name, &Device::Cpu)?;
                    Ok((name, tensor))
                });
                let tensors = tensors.collect::<Result<Vec<_>>>()?;
                Ok((files, tensors))
            })?;
            verify(tensors.iter().map(|(name, tensor)| (name, tensor)), sums.plain)
        }),
    ];
    let row = Row::new(contenders).isolated().samples(5).memory(2 * BYTES as u64);
    let row = read.into_iter().fold(row, Row::reads).bytes(BYTES as u64);
    Ok(row.point("load 256 MiB in several files into candle", "files", count as u64))
}

fn shards(data: &Data, count: usize) -> Result<Row> {
    const TENSORS: usize = 8;
    let path = sharded(data, count, TENSORS, 512)?.path;
    let paths = files_in(&path)?;
    let contenders = vec![
        Contender::ours("Checkpoint::open", move |watch| {
            let opened = watch.time(|| Checkpoint::open(&path))?;
            ensure!(opened.len() == TENSORS * count, "{} tensors", opened.len());
            Ok(())
        }),
        Contender::peer("safetensors, of each file, mapped", move |watch| {
            let headers = watch.time(|| -> Result<Vec<_>> {
                let of_file = |path: &PathBuf| {
                    let map = system::map(path)?;
                    let (_, header) = Reference::read_metadata(&map)?;
                    Ok((map, header))
                };
                paths.iter().map(of_file).collect()
            })?;
            ensure!(headers.len() == count, "{} headers", headers.len());
            Ok(())
        }),
    ];
    let row = Row::new(contenders).isolated().samples(7);
    Ok(row.point("open a checkpoint of shards", "shards", count as u64))
}

/// A directory that has only one file of tensors, whose name has to be found among others.
fn directory(data: &Data, count: usize) -> Result<Row> {
    let path = data.file_by(&format!("directory-{count}"), |directory| {
        fs::create_dir(directory)?;
        for i in 0..count {
            fs::File::create(directory.join(format!("sample-{i:06}.txt")))?;
        }
        files::write(&directory.join("weights.safetensors"), &[Tensor::bf16("w".into(), &[8])])
    })?;
    let (path, list) = (path.path.clone(), path.path);
    let contenders = vec![
        Contender::ours("Checkpoint::open", move |watch| {
            ensure!(watch.time(|| Checkpoint::open(&path))?.len() == 1, "other tensors");
            Ok(())
        }),
        listing(list, count + 1),
    ];
    let row = Row::new(contenders).isolated().samples(7);
    Ok(row.point("open a directory with other files", "other files", count as u64))
}

/// The limit of what must look at every name in a directory.
fn listing(directory: PathBuf, expected: usize) -> Contender {
    Contender::limit("the directory listed", move |watch| {
        let names = watch.time(|| -> Result<Vec<_>> {
            fs::read_dir(&directory)?.map(|entry| Ok(entry?.file_name())).collect()
        })?;
        ensure!(names.len() == expected, "{} names", names.len());
        Ok(())
    })
}

/// Epochs of a small model, which are the same but for their numbers.
fn epochs(data: &Data, count: usize) -> Result<Row> {
    let path = data.file_by(&format!("epochs-{count}"), |directory| {
        small_epoch(directory)?;
        let epochs = Epochs::new(directory);
        let first = epochs.path(1);
        for epoch in 2..=count {
            let path = epochs.path(epoch);
            fs::create_dir(&path)?;
            for entry in fs::read_dir(&first)? {
                let entry = entry?;
                let copy = path.join(entry.file_name());
                if entry.file_name() == "manifest.json" {
                    let text = fs::read_to_string(entry.path())?;
                    fs::write(copy, text.replace("\"epoch\": 1", &format!("\"epoch\": {epoch}")))?;
                } else {
                    fs::copy(entry.path(), copy)?;
                }
            }
        }
        Ok(Sums { plain: 0, widened: 0 })
    })?;
    let (path, list) = (path.path.clone(), path.path);
    let contenders = vec![
        Contender::ours("Epochs::newest", move |watch| {
            let newest = watch.time(|| Epochs::new(&path).newest())?;
            ensure!(newest == Some(count), "the newest is {newest:?}");
            Ok(())
        }),
        listing(list, count),
    ];
    let row = Row::new(contenders).isolated().samples(7);
    Ok(row.point("find the newest epoch", "epochs", count as u64))
}

/// The bytes of a row of each tensor of a sparse file.
const WIDTH: u64 = 1 << 10;

/// A file of tensors of at most 256 MiB, with so many bytes together, which are a hole.
fn sparse(data: &Data, bytes: u64) -> Result<PathBuf> {
    let each = bytes.min(256 << 20);
    let shape = [(each / WIDTH) as usize, WIDTH as usize / 4];
    let tensors = (0..bytes / each).map(|i| Tensor::f32(format!("t{i}"), &shape));
    let file = data.file_by(&format!("sparse-{bytes}.safetensors"), |path| {
        let header = header_text(&tensors.collect::<Vec<_>>());
        files::write_header(path, &header)?.set_len(8 + header.len() as u64 + bytes)?;
        Ok(Sums { plain: 0, widened: 0 })
    })?;
    Ok(file.path)
}

fn slice(data: &Data, bytes: u64) -> Result<Row> {
    const ROWS: usize = (1 << 20) / WIDTH as usize;
    let path = sparse(data, bytes)?;
    let last = Checkpoint::open(&path)?.len() - 1;
    let name = format!("t{last}");
    let (ours, theirs, of_theirs) = (path.clone(), path, name.clone());
    let contenders = vec![
        Contender::ours("Checkpoint::open, LazyTensor::slice, read", move |watch| {
            watch.repeat(|| {
                let read = Checkpoint::open(&ours)?.tensor(&name)?.slice((0..ROWS, ..))?.read()?;
                ensure!(read.bytes().len() == 1 << 20, "another length");
                Ok(read)
            })
        }),
        Contender::peer("safetensors, mapped, and copied", move |watch| {
            watch.repeat(|| {
                let map = system::map(&theirs)?;
                Ok(Reference::deserialize(&map)?.tensor(&of_theirs)?.data()[..1 << 20].to_vec())
            })
        }),
    ];
    Ok(Row::new(contenders).samples(5).point("open, read 1 MiB of a sparse file", "bytes", bytes))
}

/// All of a sparse file passes through a buffer.
fn pieces(data: &Data, bytes: u64) -> Result<Row> {
    let path = sparse(data, bytes)?;
    let (ours, limit) = (path.clone(), path.clone());
    let contenders = vec![
        Contender::ours("LazyTensor::pieces", move |watch| {
            let read = watch.time(|| -> Result<u64> {
                let (mut read, mut buffer) = (0, Vec::new());
                for tensor in Checkpoint::open(&ours)?.tensors() {
                    for piece in tensor.pieces() {
                        buffer.resize(piece.byte_len() as usize, 0);
                        piece.read_bytes_into(&mut buffer)?;
                        read += buffer.len() as u64;
                    }
                }
                Ok(read)
            })?;
            ensure!(read == bytes, "{read} bytes");
            Ok(())
        }),
        Contender::limit("read into one buffer", move |watch| {
            let mut buffer = vec![0; 1 << 20];
            watch.time(|| -> Result<()> {
                let mut file = fs::File::open(&limit)?;
                while file.read(&mut buffer)? > 0 {}
                Ok(())
            })
        }),
    ];
    let samples = if bytes >= 8 << 30 { 2 } else { 5 };
    let row = Row::new(contenders).isolated().samples(samples).bytes(bytes).cold().reads(path);
    Ok(row.point("read a sparse file piece by piece", "bytes", bytes))
}
