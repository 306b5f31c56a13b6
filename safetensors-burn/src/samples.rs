//! [`SampleDataset`]: a directory of files as a data set of burn.

use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::TensorData;
use safetensors_core::checkpoint::store::{LocalStore, Store};
use safetensors_core::framework::{Sample, Samples};

use crate::Burn;

/// A directory of safetensors files, each a sample, as burn's [`Dataset`], for burn's data loaders.
///
/// ```
/// use burn::data::dataset::Dataset;
/// use burn::tensor::TensorData;
/// use safetensors_burn::{Burn, SampleDataset};
/// use safetensors_core::SaveOptions;
/// use safetensors_core::framework::Samples;
///
/// # let dir = tempfile::tempdir()?;
/// # let directory = dir.path();
/// for i in 0..3 {
///     let image = TensorData::from([[i as f32; 4]; 4]);
///     let path = directory.join(format!("{i}.safetensors"));
///     safetensors_burn::save(path, [("image", &image)], &SaveOptions::new())?;
/// }
/// let set = SampleDataset::from(Samples::<Burn>::open(directory, ())?);
/// assert_eq!(set.len(), 3);
/// assert_eq!(set.get(2)?.tensors["image"], TensorData::from([[2.0_f32; 4]; 4]));
///
/// std::fs::remove_file(directory.join("2.safetensors"))?;
/// assert!(set.get(2).unwrap_err().to_string().contains("2.safetensors"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SampleDataset<S = LocalStore>(Samples<Burn, S>);

impl<S> From<Samples<Burn, S>> for SampleDataset<S> {
    fn from(samples: Samples<Burn, S>) -> Self {
        Self(samples)
    }
}

impl<S: Store> Dataset<Sample<TensorData>> for SampleDataset<S> {
    fn get(&self, index: usize) -> Result<Sample<TensorData>, DatasetError> {
        self.0.get(index).map_err(DatasetError::new)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
