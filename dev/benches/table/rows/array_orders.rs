//! Writing ndarray's arrays whose elements lie in Fortran order. The file has them in C order, so
//! they are rearranged on the way.

use std::fs::File;
use std::io::BufWriter;
use std::rc::Rc;

use anyhow::Result;
use half::bf16;
use ndarray::{Array, Dimension, Ix2, Ix3, ShapeBuilder};
use ndarray_npy::{NpzWriter, WritableElement};
use safetensors::tensor::TensorView;
use safetensors_bridge::SaveOptions;
use safetensors_bridge::ndarray::{ArrayElement, Writer};

use super::Spec;
use super::array_writes::writing;
use super::arrays::{BYTES, NPZ, REFERENCE};
use harness::data::Data;
use harness::sample::{Contender, Goal, Row};

const IN_C_ORDER: &str = "the same array in C order";

pub(super) fn rows() -> Vec<Spec> {
    let name = |what| format!("save an array of 256 MiB in F order, {what}");
    vec![
        Spec::new(name("f32"), |data| {
            row(data, Ix2(8192, 8192), |i| i as f32, Some(npz), safetensors::Dtype::F32)
        }),
        Spec::new(name("f64"), |data| {
            row(data, Ix2(4096, 8192), |i| i as f64, Some(npz), safetensors::Dtype::F64)
        }),
        Spec::new(name("bf16"), |data| {
            row(
                data,
                Ix2(8192, 16384),
                |i| bf16::from_bits(i as u16),
                None,
                safetensors::Dtype::BF16,
            )
        }),
        Spec::new(name("f32 in 3 dimensions"), |data| {
            row(data, Ix3(256, 512, 512), |i| i as f32, Some(npz), safetensors::Dtype::F32)
        }),
    ]
}

/// How a peer writes the array, if it knows the element type.
type Npz<T, D> = fn(&Array<T, D>, File) -> Result<()>;

fn row<T: ArrayElement, D: Dimension + 'static>(
    data: &Data,
    shape: D,
    element: fn(usize) -> T,
    npz: Option<Npz<T, D>>,
    dtype: safetensors::Dtype,
) -> Result<Row> {
    let c = Array::from_shape_fn(shape.clone(), {
        let mut i = 0;
        move |_| {
            i += 1;
            element(i)
        }
    });
    let mut f = Array::from_elem(shape.f(), element(0));
    f.assign(&c);
    let (c, f) = (Rc::new(c), Rc::new(f));
    let path = |name: &str| data.path().join(name);
    let save = |array: Rc<Array<T, D>>| {
        move |path: &std::path::Path| {
            let options = SaveOptions::new().durable(false);
            let writer = Writer::create_with(path, &options)?;
            writer.add("u", &*array)?;
            Ok(writer.finish()?)
        }
    };
    let mut contenders = vec![
        writing(Contender::ours, "Writer::add", path("f-order.safetensors"), save(f.clone())),
        writing(Contender::limit, IN_C_ORDER, path("c-order.safetensors"), save(c)),
    ];
    let mut goals = vec![Goal::OfLimit(IN_C_ORDER, 0.5), Goal::Faster(REFERENCE, 1.0)];
    let array = f.clone();
    contenders.push(writing(
        Contender::peer,
        REFERENCE,
        path("f-order-by-peer.safetensors"),
        move |path| {
            let ordered = array.as_standard_layout();
            let bytes = bytemuck::cast_slice(ordered.as_slice().unwrap_or_default());
            let view = TensorView::new(dtype, array.shape().into(), bytes)?;
            Ok(safetensors::serialize_to_file([("u", view)], None, path)?)
        },
    ));
    if let Some(npz) = npz {
        goals.push(Goal::Faster(NPZ, 1.0));
        contenders.push(writing(Contender::peer, NPZ, path("f-order.npz"), move |path| {
            npz(&f, File::create(path)?)
        }));
    }
    Ok(Row::new(contenders).goals(goals).bytes(BYTES).samples(5).memory(2 * BYTES))
}

fn npz<T: WritableElement, D: Dimension>(array: &Array<T, D>, file: File) -> Result<()> {
    let mut writer = NpzWriter::new(BufWriter::new(file));
    writer.add_array("u", array)?;
    writer.finish()?;
    Ok(())
}
