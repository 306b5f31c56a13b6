#!/usr/bin/env python3
"""Writes the fixtures of `safetensors-burn/tests/pytorch`: layers whose output PyTorch computed.

Run by hand, as CI has no Python. PyTorch for the CPU is enough:

    python3 -m venv venv
    venv/bin/pip install torch numpy 'safetensors>=0.8'
    venv/bin/python dev/scripts/pytorch_layers.py safetensors-burn/tests/fixtures

Each file holds one layer: its `state_dict` under the prefix `layer.`, and the tensors `input` and
`output` (a decoder also has `memory`). All weights are random, so that no tensor can take the place
of another unnoticed. Another version of PyTorch may write other numbers; the tests pass with them.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

BATCH, STEPS = 2, 4


class Only(nn.Module):
    """Gives one of the outputs of a layer that has several."""

    def __init__(self, layer, which=0):
        super().__init__()
        self.layer, self.which = layer, which

    def forward(self, *inputs):
        return self.layer(*inputs)[self.which]


class SelfAttention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x, x, need_weights=False)[0]


class Plain(nn.Module):
    """A layer with one output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return self.layer(*inputs)


def recurrent(kind, **options):
    return Only(kind(3, 5, batch_first=True, **options)), [torch.randn(BATCH, STEPS, 3)]


def attention(**options):
    layer = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    return SelfAttention(layer), [torch.randn(BATCH, STEPS, 8)]


def transformer(kind, inputs, **options):
    layer = kind(8, 2, 12, activation="gelu", batch_first=True, dropout=0.0, **options)
    return Plain(layer), [torch.randn(BATCH, STEPS + i, 8) for i in range(inputs)]


def stack(norm_first):
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, activation="gelu", batch_first=True, dropout=0.0, norm_first=norm_first
    )
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Plain(layers), [torch.randn(BATCH, STEPS, 8)]


def layers():
    """The name of each fixture, its module, and the inputs."""
    image = torch.randn(BATCH, 4, 5, 6)
    sequence = torch.randn(BATCH, 4, 7)
    volume = torch.randn(BATCH, 2, 3, 4, 5)
    yield "linear", Plain(nn.Linear(3, 5)), [torch.randn(BATCH, 3)]
    yield "linear_square", Plain(nn.Linear(4, 4)), [torch.randn(BATCH, 4)]
    yield "linear_without_bias", Plain(nn.Linear(3, 2, bias=False)), [torch.randn(BATCH, 3)]
    yield "embedding", Plain(nn.Embedding(7, 3)), [torch.tensor([[0, 6, 2], [5, 5, 1]])]

    yield "conv1d", Plain(nn.Conv1d(4, 6, 3, padding=1)), [sequence]
    yield "conv2d", Plain(nn.Conv2d(4, 6, (3, 2), groups=2)), [image]
    yield "conv3d", Plain(nn.Conv3d(2, 3, 2)), [volume]
    yield "conv_transpose1d", Plain(nn.ConvTranspose1d(4, 6, 3, stride=2)), [sequence]
    yield "conv_transpose2d", Plain(nn.ConvTranspose2d(4, 6, (3, 2), groups=2)), [image]
    yield "conv_transpose3d", Plain(nn.ConvTranspose3d(2, 3, 2)), [volume]

    yield "batch_norm", Plain(nn.BatchNorm2d(4)), [image]
    yield "layer_norm", Plain(nn.LayerNorm(6)), [image]
    yield "layer_norm_without_bias", Plain(nn.LayerNorm(6, bias=False)), [image]
    yield "group_norm", Plain(nn.GroupNorm(2, 4)), [image]
    yield "instance_norm", Plain(nn.InstanceNorm2d(4, affine=True)), [image]
    yield "rms_norm", Plain(nn.RMSNorm(6, eps=1e-5)), [image]
    yield "prelu", Plain(nn.PReLU(4)), [image]

    yield "lstm", *recurrent(nn.LSTM)
    yield "lstm_without_bias", *recurrent(nn.LSTM, bias=False)
    yield "lstm_bidirectional", *recurrent(nn.LSTM, bidirectional=True)
    yield "lstm_two_layers", *recurrent(nn.LSTM, num_layers=2)
    yield "gru", *recurrent(nn.GRU)
    yield "gru_bidirectional", *recurrent(nn.GRU, bidirectional=True)
    yield "rnn", *recurrent(nn.RNN)
    yield "rnn_bidirectional", *recurrent(nn.RNN, bidirectional=True)

    yield "attention", *attention()
    yield "attention_without_bias", *attention(bias=False)
    yield "encoder", *stack(False)
    yield "encoder_norm_first", *stack(True)
    yield "decoder", *transformer(nn.TransformerDecoderLayer, 2)
    yield "decoder_norm_first", *transformer(nn.TransformerDecoderLayer, 2, norm_first=True)


def randomize(module):
    """Gives every number of the state another random value. Variances are positive."""
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            low = 0.5 if name.endswith("running_var") else -1.0
            tensor.uniform_(low, 1.5 if low > 0 else 1.0)


def check_strict(module):
    """PyTorch loads the state strictly without the counter of batches, which burn lacks."""
    state = module.state_dict()
    kept = {name: t for name, t in state.items() if not name.endswith("num_batches_tracked")}
    module.load_state_dict(kept, strict=True)


def main():
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(12)
    with torch.no_grad():
        for name, module, inputs in layers():
            module.eval()
            randomize(module)
            check_strict(module)
            tensors = {key: value.contiguous() for key, value in module.state_dict().items()}
            tensors |= dict(zip(["input", "memory"], inputs))
            tensors["output"] = module(*inputs).contiguous()
            path = directory / f"{name}.safetensors"
            save_file(tensors, path, {"format": "pt"})
            print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
