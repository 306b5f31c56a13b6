//! Layers with one tensor of PyTorch for each parameter.

use burn::nn::conv::{
    Conv1dConfig, Conv2dConfig, Conv3dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig,
    ConvTranspose3dConfig,
};
use burn::nn::{
    BatchNormConfig, EmbeddingConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig,
    LinearConfig, LinearLayout, PReluConfig, PaddingConfig1d, RmsNormConfig,
};

use super::*;

/// Checks a layer with input and output of `D` dimensions.
fn check<L: Module + ModuleDisplay, const D: usize>(
    name: &str,
    layer: L,
    forward: impl Fn(&L, Tensor<D>) -> Tensor<D>,
) {
    let layer = loaded(name, layer);
    assert_output(name, forward(&layer, input::<D>(name)));
}

#[test]
fn linear_layers() {
    let device = Device::default();
    for (name, input, output, bias) in [
        ("linear", 3, 5, true),
        ("linear_square", 4, 4, true),
        ("linear_without_bias", 3, 2, false),
    ] {
        // A column layout keeps its weight as PyTorch does. It must not be transposed again, which
        // the shape of a square one does not show.
        for layout in [LinearLayout::Row, LinearLayout::Col] {
            let config = LinearConfig::new(input, output).with_bias(bias).with_layout(layout);
            check::<_, 2>(name, config.init(&device), |layer, input| layer.forward(input));
        }
    }
}

#[test]
fn an_embedding() {
    let layer = loaded("embedding", EmbeddingConfig::new(7, 3).init(&Device::default()));
    let output = layer.forward(tensor("embedding", "input"));
    assert_output("embedding", output);
}

#[test]
fn convolutions() {
    let device = Device::default();
    let config = Conv1dConfig::new(4, 6, 3).with_padding(PaddingConfig1d::Explicit(1, 1));
    check::<_, 3>("conv1d", config.init(&device), |layer, input| layer.forward(input));
    let config = Conv2dConfig::new([4, 6], [3, 2]).with_groups(2);
    check::<_, 4>("conv2d", config.init(&device), |layer, input| layer.forward(input));
    let config = Conv3dConfig::new([2, 3], [2, 2, 2]);
    check::<_, 5>("conv3d", config.init(&device), |layer, input| layer.forward(input));
}

#[test]
fn transposed_convolutions() {
    let device = Device::default();
    let config = ConvTranspose1dConfig::new([4, 6], 3).with_stride(2);
    check::<_, 3>("conv_transpose1d", config.init(&device), |layer, input| layer.forward(input));
    let config = ConvTranspose2dConfig::new([4, 6], [3, 2]).with_groups(2);
    check::<_, 4>("conv_transpose2d", config.init(&device), |layer, input| layer.forward(input));
    let config = ConvTranspose3dConfig::new([2, 3], [2, 2, 2]);
    check::<_, 5>("conv_transpose3d", config.init(&device), |layer, input| layer.forward(input));
}

#[test]
fn norms() {
    let device = Device::default();
    let layer = BatchNormConfig::new(4).init(&device);
    check::<_, 4>("batch_norm", layer, |layer, input| layer.forward(input));
    let layer = LayerNormConfig::new(6).init(&device);
    check::<_, 4>("layer_norm", layer, |layer, input| layer.forward(input));
    let layer = LayerNormConfig::new(6).with_bias(false).init(&device);
    check::<_, 4>("layer_norm_without_bias", layer, |layer, input| layer.forward(input));
    let layer = GroupNormConfig::new(2, 4).init(&device);
    check::<_, 4>("group_norm", layer, |layer, input| layer.forward(input));
    let layer = InstanceNormConfig::new(4).init(&device);
    check::<_, 4>("instance_norm", layer, |layer, input| layer.forward(input));
    let layer = RmsNormConfig::new(6).init(&device);
    check::<_, 4>("rms_norm", layer, |layer, input| layer.forward(input));
}

#[test]
fn a_prelu() {
    let layer = PReluConfig::new().with_num_parameters(4).init(&Device::default());
    check::<_, 4>("prelu", layer, |layer, input| layer.forward(input));
}
