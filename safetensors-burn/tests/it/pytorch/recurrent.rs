//! Recurrent layers: the gates of burn are parts of the tensors of PyTorch.

use burn::nn::{BiGruConfig, BiLstmConfig, BiRnnConfig, GruConfig, LstmConfig, RnnConfig};

use super::*;

#[test]
fn lstm_layers() {
    let device = Device::default();
    for (name, bias) in [("lstm", true), ("lstm_without_bias", false)] {
        let layer = loaded(name, LstmConfig::new(3, 5, bias).init(&device));
        assert_output(name, layer.forward(input(name), None).0);
    }
    let name = "lstm_bidirectional";
    let layer = loaded(name, BiLstmConfig::new(3, 5, true).init(&device));
    assert_output(name, layer.forward(input(name), None).0);
}

#[test]
fn gru_layers() {
    let device = Device::default();
    let layer = loaded("gru", GruConfig::new(3, 5, true).init(&device));
    assert_output("gru", layer.forward(input("gru"), None));
    let name = "gru_bidirectional";
    let layer = loaded(name, BiGruConfig::new(3, 5, true).init(&device));
    assert_output(name, layer.forward(input(name), None).0);
}

#[test]
fn rnn_layers() {
    let device = Device::default();
    let layer = loaded("rnn", RnnConfig::new(3, 5, true).init(&device));
    assert_output("rnn", layer.forward(input("rnn"), None).0);
    let name = "rnn_bidirectional";
    let layer = loaded(name, BiRnnConfig::new(3, 5, true).init(&device));
    assert_output(name, layer.forward(input(name), None).0);
}
