//! The recipes of the documentation for layers that PyTorch and burn put together differently.

use burn::nn::activation::ActivationConfig;
use burn::nn::transformer::{
    TransformerDecoderConfig, TransformerDecoderInput, TransformerDecoderLayer,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Lstm, LstmConfig};

use super::*;

#[test]
fn stacked_lstm_layers() {
    let name = "lstm_two_layers";
    let device = Device::default();
    let layers: Vec<Lstm> =
        [3, 5].map(|input| LstmConfig::new(input, 5, true).init(&device)).into();
    let layers = remapped(
        name,
        layers,
        [(r"^layer\.(weight|bias)_(ih|hh)_l(\d+)", "layer.$3.${1}_${2}_l0")],
        [(r"^layer\.(\d+)\.(weight|bias)_(ih|hh)_l0", "layer.${2}_${3}_l$1")],
    );
    let output = layers.iter().fold(input(name), |input, layer| layer.forward(input, None).0);
    assert_output(name, output);
}

const ENCODER_ON_LOAD: [(&str, &str); 3] = [
    (r"\.self_attn\.", ".mha."),
    (r"\.linear1\.", ".pwff.linear_inner."),
    (r"\.linear2\.", ".pwff.linear_outer."),
];
const ENCODER_ON_SAVE: [(&str, &str); 3] = [
    (r"\.mha\.", ".self_attn."),
    (r"\.pwff\.linear_inner\.", ".linear1."),
    (r"\.pwff\.linear_outer\.", ".linear2."),
];

#[test]
fn encoders_load_with_norms_last_or_first() {
    encoder("encoder", false, &[(r"\.norm(\d)\.", ".norm_$1.")], &[(r"\.norm_(\d)\.", ".norm$1.")]);
    // burn numbers these norms the other way round.
    encoder(
        "encoder_norm_first",
        true,
        &[(r"\.norm1\.", ".norm_2."), (r"\.norm2\.", ".norm_1.")],
        &[(r"\.norm_2\.", ".norm1."), (r"\.norm_1\.", ".norm2.")],
    );
}

fn encoder(name: &str, norm_first: bool, on_load: &[(&str, &str)], on_save: &[(&str, &str)]) {
    let config = TransformerEncoderConfig::new(8, 12, 2, 2)
        .with_norm_first(norm_first)
        .with_activation(ActivationConfig::Gelu);
    let layer = remapped(
        name,
        config.init(&Device::default()),
        ENCODER_ON_LOAD.iter().chain(on_load).copied(),
        ENCODER_ON_SAVE.iter().chain(on_save).copied(),
    );
    assert_output(name, layer.forward(TransformerEncoderInput::new(input(name))));
}

#[test]
fn decoders_load_with_norms_last_or_first() {
    decoder("decoder", false, &[(r"\.norm(\d)\.", ".norm_$1.")], &[(r"\.norm_(\d)\.", ".norm$1.")]);
    decoder(
        "decoder_norm_first",
        true,
        &[(r"\.norm1\.", ".norm_3."), (r"\.norm2\.", ".norm_1."), (r"\.norm3\.", ".norm_2.")],
        &[(r"\.norm_3\.", ".norm1."), (r"\.norm_1\.", ".norm2."), (r"\.norm_2\.", ".norm3.")],
    );
}

fn decoder(name: &str, norm_first: bool, on_load: &[(&str, &str)], on_save: &[(&str, &str)]) {
    let device = Device::default();
    let config = TransformerDecoderConfig::new(8, 12, 2, 1)
        .with_norm_first(norm_first)
        .with_activation(ActivationConfig::Gelu);
    let others_on_load = [
        (r"\.multihead_attn\.", ".cross_attn."),
        (r"\.linear1\.", ".pwff.linear_inner."),
        (r"\.linear2\.", ".pwff.linear_outer."),
    ];
    let others_on_save = [
        (r"\.cross_attn\.", ".multihead_attn."),
        (r"\.pwff\.linear_inner\.", ".linear1."),
        (r"\.pwff\.linear_outer\.", ".linear2."),
    ];
    let layer = remapped(
        name,
        TransformerDecoderLayer::new(&config, &device),
        others_on_load.iter().chain(on_load).copied(),
        others_on_save.iter().chain(on_save).copied(),
    );
    let decoder = TransformerDecoderInput::new(input(name), tensor(name, "memory"));
    // A layer gives its input back with the new target, which only the decoder of layers shows.
    let mut stack = config.init(&device);
    stack.layers = vec![layer];
    assert_output(name, stack.forward(decoder));
}
