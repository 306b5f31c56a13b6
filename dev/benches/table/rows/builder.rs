//! Building a model of candle: its tensors are asked for one by one.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

use super::Spec;
use super::load::{ALLOWANCE, load_as, reading, sum, verify};
use harness::data::TestFile;
use harness::files::language_model;
use harness::sample::{Contender, Goal, Role, Watch};
use harness::system;

const PEER: &str = "candle from_mmaped_safetensors";
const LIMIT: &str = "safetensors_candle::load_with";

pub(super) fn rows() -> Vec<Spec> {
    [("BF16", DType::BF16), ("F32", DType::F32)].map(|(name, dtype)| row(name, dtype)).into()
}

fn row(name: &str, dtype: DType) -> Spec {
    let name = format!("VarBuilder over all tensors, 1 GiB of BF16 as {name}, order of a model");
    Spec::new(name, move |data| {
        // Files of most models have their tensors in the order of the names.
        let mut tensors = language_model();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let file = data.file("language-model.safetensors", &tensors)?;
        let contenders = vec![
            building(Role::Ours, "safetensors_candle::var_builder", &file, dtype, move |path| {
                Ok(safetensors_candle::var_builder(path, dtype, &Device::Cpu)?)
            }),
            building(Role::Peer, PEER, &file, dtype, move |path| {
                system::candle_var_builder(path, dtype)
            }),
            load_as(Role::Limit, LIMIT, &file, dtype),
        ];
        let size = dtype.size_in_bytes() as u64 / 2 * file.data_len()?;
        let mut row = reading(contenders, &file)?;
        row.goals.extend([Goal::AtLeast(LIMIT, 0.95), Goal::Memory(size + ALLOWANCE)]);
        Ok(row)
    })
}

/// Asks for all tensors by name, one after the other, as a model does.
fn building(
    role: Role,
    name: &'static str,
    file: &TestFile,
    dtype: DType,
    open: impl Fn(&Path) -> Result<VarBuilder<'static>> + 'static,
) -> Contender {
    let (file, expected) = (file.clone(), sum(file, dtype));
    let names: Vec<_> = language_model().into_iter().map(|tensor| tensor.name).collect();
    let run = move |watch: &mut Watch| {
        // Dropping the builder is not timed.
        let (_builder, tensors) = watch.time(|| -> Result<_> {
            let builder = open(&file.path)?;
            let get = |name: &String| Ok((name.clone(), builder.get_unchecked(name)?));
            let tensors = names.iter().map(get).collect::<Result<BTreeMap<String, Tensor>>>()?;
            Ok((builder, tensors))
        })?;
        verify(tensors.iter(), expected)
    };
    Contender::new(role, name, run)
}
