//! Writes the test files without the measured code, and recognizes the tensors loaded from them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// A tensor of a test file.
pub struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: usize,
}

impl Tensor {
    pub fn bf16(name: String, shape: &[usize]) -> Self {
        let bytes = 2 * shape.iter().product::<usize>();
        Self { name, dtype: "BF16", bytes, shape: shape.to_vec() }
    }

    pub fn f32(name: String, shape: &[usize]) -> Self {
        let bytes = 4 * shape.iter().product::<usize>();
        Self { name, dtype: "F32", bytes, shape: shape.to_vec() }
    }
}

/// Tensors of 8 MiB.
pub fn matrices(count: usize) -> Vec<Tensor> {
    (0..count)
        .map(|i| Tensor::bf16(format!("model.layers.{i}.mlp.weight"), &[2048, 2048]))
        .collect()
}

/// A language model of 1 GiB: its tensors in the order in which candle's models ask for them.
pub fn language_model() -> Vec<Tensor> {
    const LAYERS: usize = 16;
    const HIDDEN: usize = 2048;
    const MLP: usize = 2560;
    let mut tensors = vec![
        Tensor::bf16("model.embed_tokens.weight".into(), &[16_384, HIDDEN]),
        Tensor::bf16("model.norm.weight".into(), &[HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let parts: [(&str, &[usize]); 9] = [
            ("self_attn.q_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.k_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.v_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, HIDDEN]),
            ("mlp.gate_proj", &[MLP, HIDDEN]),
            ("mlp.up_proj", &[MLP, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, MLP]),
            ("input_layernorm", &[HIDDEN]),
            ("post_attention_layernorm", &[HIDDEN]),
        ];
        let tensor = |(part, shape): (&str, &[usize])| {
            Tensor::bf16(format!("model.layers.{layer}.{part}.weight"), shape)
        };
        tensors.extend(parts.map(tensor));
    }
    tensors
}

/// The checksums of a test file's tensors, by [`checksum`].
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Sums {
    /// For the tensors as they are.
    pub plain: u64,
    /// For the tensors widened from 16 to 32 bits by zeros below, as BF16 becomes F32.
    pub widened: u64,
}

/// Writes the header as the format's reference implementation does.
pub fn write_header(path: &Path, header: &str) -> Result<File> {
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    Ok(file)
}

/// Returns the text of a header: entries, then spaces up to a multiple of 8.
pub fn header_text(tensors: &[Tensor]) -> String {
    let mut begin = 0;
    let entries = tensors.iter().map(|Tensor { name, dtype, shape, bytes }| {
        let (start, end) = (begin, begin + bytes);
        begin = end;
        let shape = format!("{shape:?}").replace(' ', "");
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    });
    let mut text = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    text
}

/// Writes a file of finite numbers. They are the same in every run, and differ between tensors.
pub fn write(path: &Path, tensors: &[Tensor]) -> Result<Sums> {
    let mut file = BufWriter::with_capacity(1 << 20, write_header(path, &header_text(tensors))?);
    let mut pattern = Pattern(1);
    let mut sums = Sums { plain: 0, widened: 0 };
    for tensor in tensors {
        let bytes = pattern.take(tensor.bytes);
        file.write_all(&bytes)?;
        sums.plain = sums.plain.wrapping_add(one_checksum(&tensor.name, &bytes));
        let widened: Vec<u8> =
            bytes.as_chunks().0.iter().flat_map(|&[low, high]| [0, 0, low, high]).collect();
        sums.widened = sums.widened.wrapping_add(one_checksum(&tensor.name, &widened));
    }
    // Synced now, so that the disk is not busy with it during a measurement.
    file.into_inner()?.sync_all()?;
    Ok(sums)
}

/// Pseudorandom numbers, by xorshift.
pub struct Pattern(pub u64);

impl Pattern {
    /// Takes bytes of which every two are a finite BF16 and F16, and every four a finite F32.
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let words = (0..bytes.div_ceil(8)).flat_map(|_| {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            // Without the highest bit of the exponent, no number is infinite or NaN.
            (self.0 & 0xbfff_bfff_bfff_bfff).to_le_bytes()
        });
        let mut taken: Vec<u8> = words.collect();
        taken.truncate(bytes);
        taken
    }
}

/// A checksum over names and bytes. It depends on every byte and its place, but not on the order of
/// the tensors.
pub fn checksum<N: AsRef<str>, B: AsRef<[u8]>>(tensors: impl IntoIterator<Item = (N, B)>) -> u64 {
    let sums = tensors.into_iter().map(|(name, bytes)| one_checksum(name.as_ref(), bytes.as_ref()));
    sums.fold(0, u64::wrapping_add)
}

fn one_checksum(name: &str, bytes: &[u8]) -> u64 {
    let fletcher = |bytes: &[u8]| {
        let (words, tail) = bytes.as_chunks::<8>();
        let (mut sum, mut sum_of_sums) = (bytes.len() as u64, 0_u64);
        for word in words
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .chain(tail.iter().map(|&byte| byte.into()))
        {
            sum = sum.wrapping_add(word);
            sum_of_sums = sum_of_sums.wrapping_add(sum);
        }
        sum ^ sum_of_sums.rotate_left(32)
    };
    fletcher(bytes).wrapping_mul(fletcher(name.as_bytes()) | 1)
}
