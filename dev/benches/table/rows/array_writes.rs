//! Writing 20,000 small arrays of ndarray.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Result, ensure};
use ndarray::Array2;
use ndarray_npy::NpzWriter;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use safetensors_bridge::SaveOptions;
use safetensors_bridge::ndarray::Writer;

use super::Spec;
use super::arrays::{NPZ, REFERENCE, sum_of};
use harness::data::Data;
use harness::sample::{Contender, Goal, Role, Row, Watch};

pub(super) fn rows() -> Vec<Spec> {
    vec![Spec::new("write 20,000 small arrays", |data| {
        let goals = vec![Goal::AtLeast(NPZ, 1.0), Goal::AtLeast(REFERENCE, 1.0)];
        Ok(Row { goals, ..Row::new(small(data)) })
    })]
}

/// Times a writer of a file that is not there yet, and removes the file.
pub(super) fn writing(
    role: Role,
    name: &'static str,
    path: PathBuf,
    write: impl Fn(&Path) -> Result<()> + 'static,
) -> Contender {
    Contender::new(role, name, move |watch: &mut Watch| {
        ensure!(!path.exists(), "{} is there already", path.display());
        watch.time(|| write(&path))?;
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            ensure!(sum_of(&path)? != 0, "nothing was written");
        }
        Ok(std::fs::remove_file(&path)?)
    })
}

fn small(data: &Data) -> Vec<Contender> {
    let arrays = (0..20_000).map(|i| {
        let array = Array2::from_shape_fn((8, 4), |(row, column)| (i + row + column) as f32);
        (format!("probe.{i}"), array)
    });
    let arrays: Rc<BTreeMap<String, Array2<f32>>> = Rc::new(arrays.collect());
    let for_ours = arrays.clone();
    let for_npz = arrays.clone();
    let path = |name| data.path().join(name);
    vec![
        writing(Role::Ours, "Writer::add", path("written-small.safetensors"), move |path| {
            let writer = Writer::create_with(path, &SaveOptions::new().durable(false))?;
            for_ours.iter().try_for_each(|(name, array)| writer.add(name, array))?;
            Ok(writer.finish()?)
        }),
        writing(Role::Peer, NPZ, path("written-small.npz"), move |path| {
            let mut writer = NpzWriter::new(BufWriter::new(File::create(path)?));
            for (name, array) in &*for_npz {
                writer.add_array(name.as_str(), array)?;
            }
            writer.finish()?;
            Ok(())
        }),
        writing(Role::Peer, REFERENCE, path("written-small-by-peer.safetensors"), move |path| {
            let views = arrays.iter().map(|(name, array)| {
                let bytes = bytemuck::cast_slice(array.as_slice().unwrap_or_default());
                Ok((name, TensorView::new(Dtype::F32, array.shape().into(), bytes)?))
            });
            Ok(safetensors::serialize_to_file(views.collect::<Result<Vec<_>>>()?, None, path)?)
        }),
    ]
}
