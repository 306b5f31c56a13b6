//! Writing ndarray's arrays with elements in Fortran order. The file has them in C order, so they
//! are rearranged on the way.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use ndarray::{Array, Dimension, Ix2, Ix3, ShapeBuilder};
use ndarray_npy::NpzWriter;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use safetensors_bridge::SaveOptions;
use safetensors_bridge::ndarray::Writer;

use super::Spec;
use super::array_writes::writing;
use super::arrays::{BYTES, NPZ, REFERENCE};
use harness::data::Data;
use harness::sample::{Goal, Role, Row};

const IN_C_ORDER: &str = "the same array in C order";

pub(super) fn rows() -> Vec<Spec> {
    let name = |what| format!("save an array of 256 MiB in F order, {what}");
    vec![
        Spec::new(name("f32"), |data| Ok(row(data, Ix2(8192, 8192)))),
        Spec::new(name("f32 in 3 dimensions"), |data| Ok(row(data, Ix3(256, 512, 512)))),
    ]
}

fn row<D: Dimension + 'static>(data: &Data, shape: D) -> Row {
    let mut next = 0.0;
    let c = Array::from_shape_simple_fn(shape.clone(), || {
        next += 1.0;
        next
    });
    let mut f = Array::zeros(shape.f());
    f.assign(&c);
    let (c, f) = (Rc::new(c), Rc::new(f));
    let path = |name: &str| data.path().join(name);
    let (for_ours, for_reference) = (f.clone(), f.clone());
    let contenders = vec![
        writing(Role::Ours, "Writer::add", path("f-order.safetensors"), move |path| {
            save(path, &for_ours)
        }),
        writing(Role::Limit, IN_C_ORDER, path("c-order.safetensors"), move |path| save(path, &c)),
        writing(Role::Peer, REFERENCE, path("f-order-by-peer.safetensors"), move |path| {
            let ordered = for_reference.as_standard_layout();
            let bytes = bytemuck::cast_slice(ordered.as_slice().unwrap_or_default());
            let view = TensorView::new(Dtype::F32, ordered.shape().into(), bytes)?;
            Ok(safetensors::serialize_to_file([("u", view)], None, path)?)
        }),
        writing(Role::Peer, NPZ, path("f-order.npz"), move |path| {
            let mut writer = NpzWriter::new(BufWriter::new(File::create(path)?));
            writer.add_array("u", &*f)?;
            writer.finish()?;
            Ok(())
        }),
    ];
    let goals = vec![
        Goal::AtLeast(IN_C_ORDER, 0.5),
        Goal::AtLeast(REFERENCE, 1.0),
        Goal::AtLeast(NPZ, 1.0),
    ];
    Row { goals, bytes: Some(BYTES), samples: 5, ..Row::new(contenders) }
}

fn save<D: Dimension>(path: &Path, array: &Array<f32, D>) -> Result<()> {
    let writer = Writer::create_with(path, &SaveOptions::new().durable(false))?;
    writer.add("u", array)?;
    Ok(writer.finish()?)
}
