//! One test suite for all frameworks. The cases are generic over `Framework`, and run for each
//! enabled adapter.
#![allow(
    dead_code,
    unused_macros,
    reason = "without an adapter there is nothing to run the cases on"
)]

mod documented;
mod loading;
#[cfg(all(unix, feature = "ndarray", feature = "candle", feature = "burn"))]
mod modes;
#[cfg(all(feature = "ndarray", feature = "candle", feature = "burn"))]
mod parts;
#[cfg(all(feature = "ndarray", feature = "candle", feature = "burn"))]
mod quantised;
mod sample;
mod saving;
mod scaled;
#[cfg(all(feature = "ndarray", feature = "candle", feature = "burn"))]
mod schemes;
#[cfg(all(feature = "ndarray", feature = "candle", feature = "burn"))]
mod ties;
#[cfg(all(feature = "ndarray", feature = "candle", feature = "burn"))]
mod ways;

use safetensors_bridge::framework::Framework;

/// Makes tensors with memory that is not in C order. `Framework` itself has no way to do that.
trait Fixture: Framework<Tensor: Send + Sync, Device: Clone + Send + Sync> + 'static {
    /// Returns the transpose of a matrix, by strides if the framework has them.
    fn transpose(matrix: &Self::Tensor) -> Self::Tensor;

    /// Returns the columns `from..to` of a matrix, by strides if the framework has them.
    fn columns(matrix: &Self::Tensor, from: usize, to: usize) -> Self::Tensor;

    /// A row repeated to a matrix of `rows` rows, by a stride of 0 if the framework has it.
    fn broadcast(row: &Self::Tensor, rows: usize) -> Self::Tensor;
}

macro_rules! conformance {
    ($framework:ty, $device:expr; $($subject:ident::$case:ident),* $(,)?) => {$(
        #[test]
        fn $case() {
            crate::conformance::$subject::$case::<$framework>(&$device);
        }
    )*};
    ($framework:ty, $device:expr) => {
        conformance! { $framework, $device;
            loading::every_dtype_at_every_ndim,
            loading::tensors_without_elements,
            loading::exact_loading_refuses_to_widen,
            loading::values_that_do_not_fit_are_named,
            loading::booleans_other_than_0_and_1_are_refused,
            loading::misaligned_views_and_files,
            saving::transposed_strided_and_broadcast_sources,
            loading::several_files,
            loading::arranged_tensors,
            loading::rows_in_any_order,
            loading::any_name,
            loading::samples_of_a_directory_are_stacked,
            loading::a_cache_keeps_slices_of_tensors,
            saving::save_load_save_is_byte_identical,
            saving::a_failed_save_leaves_the_old_file,
            loading::the_dtype_table_is_the_documented_one,
            saving::tied_tensors_are_saved_once,
            saving::tied_tensors_of_any_layout,
            saving::shards,
            saving::metadata_is_passed_on_without_the_records_of_another_file,
            loading::floats_come_in_the_asked_dtype,
            scaled::weights_are_converted_with_their_scales,
            scaled::experts_come_in_the_asked_layout,
        }
    };
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use ::ndarray::{Axis, Slice};
    use safetensors_bridge::ndarray::{DynArray, Ndarray};

    use super::Fixture;

    fn map(
        array: &DynArray,
        change: impl Fn(::ndarray::ArrayD<f32>) -> ::ndarray::ArrayD<f32>,
    ) -> DynArray {
        change(array.as_array::<f32, ndarray::IxDyn>().unwrap().to_owned()).into()
    }

    impl Fixture for Ndarray {
        fn transpose(matrix: &DynArray) -> DynArray {
            map(matrix, |array| array.reversed_axes())
        }

        fn columns(matrix: &DynArray, from: usize, to: usize) -> DynArray {
            map(matrix, |mut array| {
                array.slice_axis_inplace(Axis(1), Slice::from(from..to));
                array
            })
        }

        fn broadcast(row: &DynArray, rows: usize) -> DynArray {
            map(row, |array| array.broadcast([rows, array.len()]).unwrap().into_dyn().to_owned())
        }
    }

    conformance!(Ndarray, ());
}

#[cfg(feature = "candle")]
mod candle {
    use candle_core::{Device, Tensor};
    use safetensors_bridge::candle::Candle;

    use super::Fixture;

    impl Fixture for Candle {
        fn transpose(matrix: &Tensor) -> Tensor {
            matrix.t().unwrap()
        }

        fn columns(matrix: &Tensor, from: usize, to: usize) -> Tensor {
            matrix.narrow(1, from, to - from).unwrap()
        }

        fn broadcast(row: &Tensor, rows: usize) -> Tensor {
            row.broadcast_as((rows, row.elem_count())).unwrap()
        }
    }

    conformance!(Candle, Device::Cpu);
}

#[cfg(feature = "burn")]
mod burn {
    use ::burn::tensor::{Device, Tensor, TensorData};
    use safetensors_bridge::burn::Burn;

    use super::Fixture;

    fn tensor<const D: usize>(data: &TensorData) -> Tensor<D> {
        Tensor::from_data(data.clone(), &Device::default())
    }

    impl Fixture for Burn {
        fn transpose(matrix: &TensorData) -> TensorData {
            tensor::<2>(matrix).transpose().into_data()
        }

        fn columns(matrix: &TensorData, from: usize, to: usize) -> TensorData {
            tensor::<2>(matrix).narrow(1, from, to - from).into_data()
        }

        fn broadcast(row: &TensorData, rows: usize) -> TensorData {
            let row = tensor::<1>(row);
            let columns = row.dims()[0];
            row.unsqueeze::<2>().expand([rows, columns]).into_data()
        }
    }

    conformance!(Burn, ());
}
