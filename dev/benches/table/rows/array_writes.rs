//! Writing ndarray's arrays: one that grows step by step, and many small ones. The peers hold every
//! step until the end, because they write an array whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Result, ensure};
use ndarray::{Array2, Array3, Axis};
use ndarray_npy::NpzWriter;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use safetensors_bridge::SaveOptions;
use safetensors_bridge::ndarray::Writer;

use super::Spec;
use super::arrays::{BYTES, NPZ, REFERENCE, SHAPE, sum_of};
use harness::data::Data;
use harness::sample::{Contender, Goal, Row};

pub(super) fn rows() -> Vec<Spec> {
    let rows = [("warm", false), ("fresh process", true)].map(|(how, isolated)| {
        [
            Spec::new(format!("write an array that grows to 256 MiB, {how}"), move |data| {
                // The steps are held by the peers, not by us.
                let row = run(growing(data)?, isolated).bytes(BYTES);
                Ok(row.goals([Goal::Memory(8 << 20)]).samples(5).memory(2 * BYTES))
            }),
            Spec::new(format!("write 20,000 small arrays, {how}"), move |data| {
                Ok(run(small(data)?, isolated))
            }),
        ]
    });
    rows.into_iter().flatten().collect()
}

fn run(contenders: Vec<Contender>, isolated: bool) -> Row {
    let row = Row::new(contenders).goals([Goal::Faster(NPZ, 1.0), Goal::Faster(REFERENCE, 1.0)]);
    if isolated { row.isolated() } else { row }
}

/// Times a writer of a file that is not there yet, and removes the file.
pub(super) fn writing(
    role: fn(&'static str, Box<harness::sample::Run>) -> Contender,
    name: &'static str,
    path: PathBuf,
    write: impl Fn(&Path) -> Result<()> + 'static,
) -> Contender {
    let run = move |watch: &mut harness::sample::Watch| {
        ensure!(!path.exists(), "{} is there already", path.display());
        watch.time(|| write(&path))?;
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            ensure!(sum_of(&path)? != 0, "nothing was written");
        }
        Ok(std::fs::remove_file(&path)?)
    };
    role(name, Box::new(run))
}

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

/// The state after a step.
fn next(state: &mut Array2<f32>) {
    *state += 1.0;
}

fn growing(data: &Data) -> Result<Vec<Contender>> {
    let [steps, rows, columns] = SHAPE;
    let ours = writing(
        Contender::ours,
        "Writer::grow, append",
        data.path().join("grown.safetensors"),
        move |path| {
            let writer = Writer::create_with(path, &options())?;
            let u = writer.grow("u", Axis(0), &[rows, columns])?;
            let mut state = Array2::<f32>::zeros((rows, columns));
            for _ in 0..steps {
                next(&mut state);
                u.append(&state)?;
            }
            Ok(writer.finish()?)
        },
    );
    let collect = move || {
        let mut state = Array2::<f32>::zeros((rows, columns));
        let mut all = Array3::<f32>::zeros(SHAPE);
        for mut step in all.outer_iter_mut() {
            next(&mut state);
            step.assign(&state);
        }
        all
    };
    let npz = writing(Contender::peer, NPZ, data.path().join("grown.npz"), move |path| {
        let mut writer = NpzWriter::new(BufWriter::new(File::create(path)?));
        writer.add_array("u", &collect())?;
        writer.finish()?;
        Ok(())
    });
    let path = data.path().join("grown-by-peer.safetensors");
    let reference = writing(Contender::peer, REFERENCE, path, move |path| {
        let all = collect();
        let bytes = bytemuck::cast_slice(all.as_slice().unwrap_or_default());
        let view = TensorView::new(Dtype::F32, SHAPE.into(), bytes)?;
        Ok(safetensors::serialize_to_file([("u", view)], None, path)?)
    });
    Ok(vec![ours, npz, reference])
}

fn small(data: &Data) -> Result<Vec<Contender>> {
    let arrays = (0..20_000).map(|i| {
        let array = Array2::from_shape_fn((8, 4), |(row, column)| (i + row + column) as f32);
        (format!("probe.{i}"), array)
    });
    let arrays: Rc<BTreeMap<String, Array2<f32>>> = Rc::new(arrays.collect());
    let (for_ours, for_npz) = (arrays.clone(), arrays.clone());
    let path = data.path().join("written-small.safetensors");
    let ours = writing(Contender::ours, "Writer::add", path, move |path| {
        let writer = Writer::create_with(path, &options())?;
        for_ours.iter().try_for_each(|(name, array)| writer.add(name, array))?;
        Ok(writer.finish()?)
    });
    let path = data.path().join("written-small.npz");
    let npz = writing(Contender::peer, NPZ, path, move |path| {
        let mut writer = NpzWriter::new(BufWriter::new(File::create(path)?));
        for (name, array) in &*for_npz {
            writer.add_array(name.as_str(), array)?;
        }
        writer.finish()?;
        Ok(())
    });
    let path = data.path().join("written-small-by-peer.safetensors");
    let reference = writing(Contender::peer, REFERENCE, path, move |path| {
        let views = arrays.iter().map(|(name, array)| {
            let bytes = bytemuck::cast_slice(array.as_slice().unwrap_or_default());
            Ok((name, TensorView::new(Dtype::F32, array.shape().into(), bytes)?))
        });
        Ok(safetensors::serialize_to_file(views.collect::<Result<Vec<_>>>()?, None, path)?)
    });
    Ok(vec![ours, npz, reference])
}
