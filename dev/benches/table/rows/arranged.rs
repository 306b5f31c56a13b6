//! Tensors made of others, compared with reading the stored ones.

use std::path::Path;

use anyhow::{Result, ensure};
use safetensors_bridge::checkpoint::Arranged;
use safetensors_bridge::{Checkpoint, LoadOptions, TensorBuf};

use super::Spec;
use super::load::ALLOWANCE;
use harness::data::TestFile;
use harness::files::matrices;
use harness::sample::{Contender, Goal, Role, Row};
use harness::system;

const STORED: &str = "the stored tensors, read_all";

/// Makes an arrangement of tensors with these names.
type Arrange = fn(Vec<String>) -> Vec<(String, Arranged)>;

pub(super) fn rows() -> Vec<Spec> {
    let row = |how, share, arrange: Arrange| {
        Spec::new(format!("read 1 GiB of matrices, {how}"), move |data| {
            let file = data.file("one-gib.safetensors", &matrices(128))?;
            let contenders = vec![
                reading(Role::Ours, "Checkpoint::arranged, read_all", &file, move |path| {
                    let checkpoint = Checkpoint::open(path)?;
                    let names = checkpoint.tensors().map(|tensor| tensor.name().to_owned());
                    let arrangement = arrange(names.collect());
                    Ok(checkpoint.arranged(arrangement)?.read_all(&LoadOptions::new())?)
                }),
                reading(Role::Limit, STORED, &file, |path| {
                    Ok(Checkpoint::open(path)?.read_all(&LoadOptions::new())?)
                }),
            ];
            let bytes = file.data_len()?;
            let goals = vec![Goal::AtLeast(STORED, share), Goal::Memory(bytes + ALLOWANCE)];
            Ok(Row { goals, bytes: Some(bytes), files: vec![file.path], ..Row::loads(contenders) })
        })
    };
    vec![row("split", 0.8, split), row("stacked", 0.8, stacked), row("transposed", 0.3, transposed)]
}

fn split(names: Vec<String>) -> Vec<(String, Arranged)> {
    let halves = |name: String| {
        let tensor = Arranged::tensor(name.as_str());
        [
            (format!("{name}.gate"), tensor.clone().slice(0, ..1024)),
            (format!("{name}.up"), tensor.slice(0, 1024..)),
        ]
    };
    names.into_iter().flat_map(halves).collect()
}

fn stacked(names: Vec<String>) -> Vec<(String, Arranged)> {
    vec![("stack".into(), Arranged::stack(names.into_iter().map(Arranged::tensor)))]
}

fn transposed(names: Vec<String>) -> Vec<(String, Arranged)> {
    names.into_iter().map(|name| (name.clone(), Arranged::tensor(name).transposed())).collect()
}

/// Times a way to read all elements, and compares their sum, which does not depend on the order.
fn reading(
    role: Role,
    name: &'static str,
    file: &TestFile,
    read: impl Fn(&Path) -> Result<Vec<TensorBuf>> + 'static,
) -> Contender {
    let file = file.clone();
    Contender::new(role, name, move |watch| {
        let tensors = watch.time(|| read(&file.path))?;
        let map = system::map(&file.path)?;
        let stored = &map[map.len() - file.data_len()? as usize..];
        let found = tensors.iter().map(|tensor| sum(tensor.bytes())).sum::<u64>();
        ensure!(found == sum(stored), "other elements than were written");
        Ok(())
    })
}

fn sum(elements: &[u8]) -> u64 {
    elements.as_chunks().0.iter().map(|&element| u64::from(u16::from_le_bytes(element))).sum()
}
