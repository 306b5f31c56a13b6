//! Saving while the training goes on: how long the training waits, and when the file is there.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::thread;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor, Var};
use candle_nn::VarMap;
use safetensors_bridge::SaveOptions;
use safetensors_candle::train::save_in_background;
use safetensors_core::save::BackgroundSaver;

use super::Spec;
use harness::sample::{Contender, Goal, Row, Watch};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("candle variables saved in the background, the training waits", |data| {
            row(data.path(), Until::Returned, 1.0)
        }),
        Spec::new("candle variables saved in the background, until the file is there", |data| {
            row(data.path(), Until::Saved, 1.0)
        }),
    ]
}

const OURS: &str = "train::save_in_background";
const PEER: &str = "copies, thread, serialize_to_file";

/// 32 variables of 16 MiB: 512 MiB.
const COUNT: usize = 32;
const SIZE: usize = 2048;
const BYTES: u64 = (COUNT * SIZE * SIZE * size_of::<f32>()) as u64;

/// The memory that a save may take beside the copies, in bytes.
const ALLOWANCE: u64 = BYTES + (32 << 20);

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The call.
    Returned,
    /// The call, and the wait for its thread.
    Saved,
}

/// Variables of different numbers.
fn variables() -> Result<VarMap> {
    let map = VarMap::new();
    for i in 0..COUNT {
        // All below 2²⁴, above which F32 does not have every whole number.
        let numbers = (Tensor::arange(0_f32, (SIZE * SIZE) as f32, &Device::Cpu)? + i as f64)?;
        let var = Var::from_tensor(&numbers.reshape((SIZE, SIZE))?)?;
        map.data().lock().expect("no thread panics").insert(format!("layers.{i}.weight"), var);
    }
    Ok(map)
}

/// Each sample saves a new file, without waiting for the disk: `serialize_to_file` does not either.
fn row(folder: &Path, until: Until, faster: f64) -> Result<Row> {
    let folder = Rc::new(tempfile::tempdir_in(folder)?);
    let map = Rc::new(variables()?);
    let (for_ours, path) = (map.clone(), folder.path().join("saved.safetensors"));
    let (ours_in, peer_in) = (folder.clone(), folder);
    let ours_path = path.clone();
    let ours = Contender::ours(OURS, move |watch: &mut Watch| {
        let _folder = &ours_in;
        let (mut saver, options) = (BackgroundSaver::new(), SaveOptions::new().durable(false));
        let begin = |saver: &mut _| save_in_background(saver, &ours_path, &*for_ours, &options);
        match until {
            Until::Returned => watch.time(|| begin(&mut saver))?,
            Until::Saved => watch.time(|| begin(&mut saver).and_then(|()| saver.wait()))?,
        }
        saver.wait()?;
        check(&ours_path, &for_ours)
    });
    let peer = Contender::peer(PEER, move |watch: &mut Watch| {
        let _folder = &peer_in;
        let begin = || {
            let copies = copies(&map)?;
            let path = path.clone();
            anyhow::Ok(thread::spawn(move || {
                safetensors::serialize_to_file(copies.iter(), None, &path)
            }))
        };
        let join = |thread: thread::JoinHandle<_>| match thread.join() {
            Ok(saved) => anyhow::Ok(saved?),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match until {
            Until::Returned => join(watch.time(begin)?)?,
            Until::Saved => watch.time(|| begin().and_then(join))?,
        }
        check(&path, &map)
    });
    let goals = [Goal::Faster(PEER, faster), Goal::Memory(ALLOWANCE)];
    // The copies, and the file, which is in the page cache.
    Ok(Row::new(vec![ours, peer]).goals(goals).bytes(BYTES).samples(7).memory(3 * BYTES))
}

/// Copies of all variables, which no step of the training changes.
fn copies(map: &VarMap) -> Result<HashMap<String, Tensor>> {
    let variables = map.data().lock().expect("no thread panics");
    let copy = |(name, var): (&String, &Var)| Ok((name.clone(), var.as_tensor().copy()?));
    variables.iter().map(copy).collect()
}

/// Compares some numbers of each variable, and removes the file.
fn check(path: &Path, map: &VarMap) -> Result<()> {
    let mapped = system::map(path)?;
    let found = safetensors::SafeTensors::deserialize(&mapped)?;
    for (name, var) in map.data().lock().expect("no thread panics").iter() {
        let row = var.get(SIZE / 2)?.to_vec1::<f32>()?;
        let data = found.tensor(name)?.data();
        let at = data.len() / 2;
        let expected: &[u8] = bytemuck::cast_slice(&row);
        ensure!(data[at..at + expected.len()] == *expected, "other numbers than were saved");
    }
    ensure!(found.len() == COUNT, "other tensors than were saved");
    Ok(std::fs::remove_file(path)?)
}
