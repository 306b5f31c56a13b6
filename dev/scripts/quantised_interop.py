"""Loads the output of `safetensors convert --quantize` with transformers and compressed-tensors.

A small Llama with a tied head is saved by transformers, quantised by the command with each scheme,
and loaded by transformers on a CPU. Each number must be within half a step of its codes, all that
is not quantised must be equal, and no tensor may be missing or left over. Then the command makes
numbers of it again, which transformers must load as a plain model with the same weights.

Run with: python dev/scripts/quantised_interop.py target/debug/safetensors [SCHEME ...]

Needs, from PyPI: torch 2.15, safetensors, transformers 5.24, compressed-tensors 0.20, accelerate.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    LlamaConfig,
    LlamaForCausalLM,
)

ALL = ["fp8-block128", "fp8-channel", "fp8-tensor", "int8-channel", "nvfp4", "mxfp4"]
COMMAND, *SCHEMES = sys.argv[1:]


def load(path, **options):
    """The weights by name, as F32. Fails unless the files have exactly the model's names."""
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, output_loading_info=True, **options
    )
    assert not any(info.values()), info
    return {name: weight.detach().float() for name, weight in model.state_dict().items()}


def half_step(scheme, weight):
    """Half the distance of the codes around each number, in a scheme."""
    rows, columns = weight.shape
    size = weight.abs()
    if scheme in ("nvfp4", "mxfp4"):
        group = 16 if scheme == "nvfp4" else 32
        most = size.view(rows, -1, group).amax(-1).repeat_interleave(group, 1)
        # The scale of a group is rounded, too, to four digits or to a power of two.
        return torch.maximum(size / 4, most * (1 / 18 if scheme == "nvfp4" else 1 / 10)) + 1e-3
    most = {
        "fp8-block128": lambda: torch.nn.functional.max_pool2d(
            size[None], 128, ceil_mode=True
        )[0].repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns],
        "fp8-tensor": lambda: size.max(),
    }.get(scheme, lambda: size.amax(-1, keepdim=True))()
    if scheme == "int8-channel":
        return most / 255
    return torch.maximum(size / 16, most / 448 / 1024)


def check(scheme, folder, original):
    out = folder / scheme
    options = ["--quantize", scheme, "--report"]
    subprocess.run([COMMAND, "convert", folder / "model", out, *options], check=True)
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    if settings["quant_method"] == "fp8":
        found = load(out, quantization_config=FineGrainedFP8Config(dequantize=True))
    else:
        found = load(out, quantization_config=CompressedTensorsConfig(run_compressed=False))
    names = [name for name in original if "_proj." in name]
    worst = 0.0
    for name, weight in original.items():
        if name not in names:
            assert torch.equal(found[name], weight), f"{scheme}: {name} is not the same"
            continue
        distance = (found[name] - weight).abs() / (half_step(scheme, weight) * 1.0001)
        worst = max(worst, distance.max().item())
        assert worst <= 1, f"{scheme}: {name} is {worst} half steps off"
    error = torch.cat([(found[name] - original[name]).flatten() for name in names])
    scale = torch.cat([original[name].flatten() for name in names]).norm()
    print(f"{scheme}: at most {worst:.4f} half steps, relative error {error.norm() / scale:.4f}")

    plain = folder / f"{scheme}-plain"
    subprocess.run([COMMAND, "convert", out, plain, "--dtype", "f32"], check=True)
    assert "quantization_config" not in json.loads((plain / "config.json").read_text())
    numbers = load(plain)
    # compressed-tensors rounds the scales of NVFP4 to BF16 when it reads them.
    rtol = 2**-8 if scheme == "nvfp4" else 1e-6
    for name, weight in found.items():
        torch.testing.assert_close(numbers[name], weight, rtol=rtol, atol=0)


def main():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=256,
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        LlamaForCausalLM(config).save_pretrained(folder / "model")
        original = load(folder / "model")
        for scheme in SCHEMES or ALL:
            check(scheme, folder, original)


main()
