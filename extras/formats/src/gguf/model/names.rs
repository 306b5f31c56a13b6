//! [`Options::transformers_names`]: the architectures' tables, from GGUF to transformers.

use safetensors_core::{Dtype, Metadata, shape};

use super::architecture::{Architecture, Change, LAYERS, Part};
use super::fields::bad;
use super::{ARCHITECTURES, ROPE_FACTORS};
use crate::Options;
use crate::error::{Quoted, Result};
use crate::options::Names;
use crate::tensor_file::{Data, Reason, Stored, Tensor, Undo};

const ARCHITECTURE: &str = "general.architecture";

/// A head is read at once. The largest have 8 MiB.
const MOST: u64 = 16 << 20;

impl Options {
    /// Opens a GGUF file under the names of transformers, and restores the rows of Llama's queries
    /// and keys, and the norms of Gemma. `metadata` is the opened file's.
    /// [`Model`](crate::gguf::Model) lists the architectures.
    ///
    /// `rope_freqs.weight` is not listed, because `config.json` gives it. Another unnamed tensor
    /// keeps its name, and reading it is [`ErrorKind::NoGgufName`](crate::ErrorKind::NoGgufName).
    ///
    /// ```no_run
    /// use safetensors_formats::Options;
    ///
    /// let stored = safetensors_formats::open("llama.gguf", &Options::new())?;
    /// let options = Options::new().dequantize(true).transformers_names(stored.metadata())?;
    /// let checkpoint = safetensors_formats::open("llama.gguf", &options)?;
    /// let queries = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")?.read()?;
    /// # Ok::<(), safetensors_formats::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadModel`](crate::ErrorKind::BadModel) for metadata without a known
    /// architecture.
    pub fn transformers_names(mut self, metadata: &Metadata) -> Result<Self> {
        let name = metadata.get(ARCHITECTURE).map_or("", String::as_str);
        let architecture = find(name).ok_or_else(|| {
            let mut known: Vec<_> = ARCHITECTURES.iter().map(|it| it.name).collect();
            known.dedup();
            let known = known.join(", ");
            bad(format!("{ARCHITECTURE} should be one of {known}, found {}", Quoted(name)))
        })?;
        let name = architecture.name;
        let heads = |key: &str| metadata.get(&format!("{name}.attention.{key}"))?.parse().ok();
        let queries = heads("head_count");
        self.names =
            Some(Names { architecture: name, queries, keys: heads("head_count_kv").or(queries) });
        Ok(self)
    }
}

/// All architectures of a name in GGUF have the same tensors.
fn find(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.into_iter().find(|architecture| architecture.name == name)
}

pub(crate) fn rename(tensors: &mut Vec<Tensor>, names: &Names) -> Result<()> {
    let Some(architecture) = find(names.architecture) else { return Ok(()) };
    tensors.retain(|tensor| tensor.name != ROPE_FACTORS);
    for tensor in tensors {
        let Some(part) = architecture.part(&tensor.name, LAYERS, |row| row.target) else {
            refuse(tensor, architecture.name);
            continue;
        };
        if !matches!(tensor.data, Data::Refused(_))
            && let Some(undo) =
                undo(tensor, part, names).map_err(|error| error.in_tensor(&tensor.name))?
        {
            let data = std::mem::replace(&mut tensor.data, Data::Refused(Reason::NoName("")));
            tensor.data = Data::Undone { data: Box::new(data), undo };
        }
        tensor.name = part.source(architecture);
    }
    Ok(())
}

fn refuse(tensor: &mut Tensor, architecture: &'static str) {
    let Tensor { dtype, shape, .. } = tensor;
    let stored = tensor.stored.take().unwrap_or_else(|| {
        let byte_len = shape::byte_len(*dtype, shape).unwrap_or(u64::MAX);
        Stored::unreadable(dtype.to_string(), shape.clone(), byte_len)
    });
    tensor.stored = Some(Stored { is_readable: false, is_quantised: false, ..stored });
    tensor.data = Data::Refused(Reason::NoName(architecture));
}

fn undo(tensor: &Tensor, part: Part, names: &Names) -> Result<Option<Undo>> {
    let heads = match part.row.change {
        Change::Nothing => return Ok(None),
        Change::AddOne if tensor.dtype == Dtype::F32 => return Ok(Some(Undo::PlusOne)),
        Change::AddOne => return Err(bad(format!("it should be F32, found {}", tensor.dtype))),
        Change::InterleaveQueries => names.queries,
        Change::InterleaveKeys => names.keys,
    };
    let rows = tensor.shape.first().copied().unwrap_or(0);
    let row = shape::byte_len(tensor.dtype, tensor.shape.get(1..).unwrap_or(&[]))?;
    let heads: usize = heads.unwrap_or(0);
    let Some(of_head) = rows.checked_div(heads).filter(|it| it * heads == rows && it % 2 == 0)
    else {
        return Err(bad(format!(
            "its {rows} rows should divide among {heads} heads, an even number each"
        )));
    };
    match row.checked_mul(of_head as u64) {
        // Without bytes, nothing is read.
        Some(0) => Ok(None),
        Some(bytes) if bytes <= MOST => {
            Ok(Some(Undo::Interleaved { row: row as usize, rows: of_head }))
        }
        _ => Err(bad(format!("a head has more than {MOST} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::architecture::Row;
    use super::*;

    #[test]
    fn a_name_in_gguf_is_one_tensor_of_an_architecture() {
        for architecture in ARCHITECTURES {
            let same = find(architecture.name).unwrap();
            let parts = |of: &Architecture| [&[of.outer], of.layer].map(<[_]>::concat);
            for (rows, others) in parts(architecture).into_iter().zip(parts(same)) {
                let names = |rows: &[Row]| {
                    rows.iter().map(|row| (row.target, row.source)).collect::<Vec<_>>()
                };
                assert_eq!(names(&rows), names(&others), "{}", architecture.name);
                let targets: HashSet<_> = rows.iter().map(|row| row.target).collect();
                assert_eq!(targets.len(), rows.len(), "{}", architecture.name);
            }
        }
    }
}
