//! A directory of files as a data set of arrays.

use ndarray::{Array2, array};
use safetensors_core::framework::Samples;
use safetensors_core::{Error, SaveOptions};
use safetensors_ndarray::{DynArray, Ndarray, Writer};

#[test]
fn batches_are_arrays_with_one_more_axis() {
    let dir = tempfile::tempdir().unwrap();
    for i in 0..5_u8 {
        let options = SaveOptions::new().metadata([("label", i.to_string())]).durable(false);
        let path = dir.path().join(format!("{i}.safetensors"));
        let w = Writer::create_with(path, &options).unwrap();
        w.add("image", &Array2::from_elem((2, 3), f32::from(i)).t()).unwrap();
        w.add("mask", &array![i == 3, true]).unwrap();
        w.finish().unwrap();
    }
    let samples = Samples::<Ndarray>::open(dir.path(), ()).unwrap();
    let mut sizes = Vec::new();
    let all = samples.for_each_batch(samples.shuffled(5), 2, |batch| {
        let DynArray::F32(images) = &batch.tensors["image"] else { panic!() };
        let DynArray::Bool(masks) = &batch.tensors["mask"] else { panic!() };
        assert_eq!(images.shape(), [batch.positions.len(), 3, 2]);
        for (i, &position) in batch.positions.iter().enumerate() {
            assert_eq!(batch.metadata[i]["label"], position.to_string());
            assert!(images.index_axis(ndarray::Axis(0), i).iter().all(|&x| x == position as f32));
            assert_eq!(masks[[i, 0]], position == 3);
        }
        sizes.push(batch.positions.len());
        Ok::<(), Error>(())
    });
    all.unwrap();
    assert_eq!(sizes, [2, 2, 1]);
}
