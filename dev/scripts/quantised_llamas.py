"""Makes the tiny quantised Llamas that model-examples reads end to end.

Each folder in dev/testing/fixtures/llamas has a model of random weights as a package
quantises and saves it, and logits.safetensors, for fixed tokens:

    tokens   what the model reads
    package  the logits that the package itself computes on a CPU, in F32
    exact    the logits of a plain Llama with the package's dequantised weights, in F64
    plain    the logits of the weights before they were quantised, in F64

Run with: python dev/scripts/quantised_llamas.py [NAME ...]

Needs, from PyPI: torch 2.15, safetensors, transformers 5.24, accelerate, compressed-tensors 0.20,
bitsandbytes 0.50, torchao 0.18, hqq 0.2.8.
"""

import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

OUT = Path(__file__).resolve().parents[2] / "dev/testing/fixtures/llamas"
TOKENS = torch.tensor([[1, 17, 42, 99, 3, 64, 7, 120, 55, 2, 127, 0]])
CONFIG = LlamaConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    dtype="float32",
)
LOGITS = "logits.safetensors"
MAKERS = {}


def maker(name):
    def register(function):
        MAKERS[name] = function
        return function

    return register


def plain():
    """The model before it is quantised. Its attention looks at more than one token."""
    torch.manual_seed(20)
    model = LlamaForCausalLM(CONFIG).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0.0, 1.0 if "embed" in name else weight.shape[1] ** -0.5 * 1.5)
            else:
                weight.uniform_(0.5, 1.5)
    return model


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits[0].clone()


def exact(weights):
    """The logits of a plain Llama with these weights, by their names."""
    model = copy.deepcopy(plain()).double()
    missing = model.load_state_dict({k: v.double() for k, v in weights.items()}, strict=True)
    assert not missing.missing_keys and not missing.unexpected_keys
    return logits(model)


def weights_of(model, dequantize):
    """All weights of a quantised model as numbers."""
    found = dict(plain().state_dict())
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) or hasattr(module, "W_q"):
            found[f"{name}.weight"] = dequantize(module).detach().float()
    return found


@maker("compressed-tensors-w4a16")
def compressed(folder):
    """Scales by minimum and maximum, as without calibration; then the package's compressor."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    model = plain()
    scheme = preset_name_to_scheme("W4A16", ["Linear"])
    scheme.weights.group_size = 32
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(model, config)
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        grouped = module.weight.data.unflatten(1, (-1, 32))
        scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), scheme.weights)
        module.weight_scale.data.copy_(scale)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    # The package's own model: as transformers loads it with compressed-tensors.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = logits(model)
    weights = model.state_dict()
    return found, {name: weights[name] for name in plain().state_dict()}


@maker("bitsandbytes-nf4")
def bitsandbytes_nf4(folder):
    from bitsandbytes.functional import dequantize_4bit
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model = reloaded(config)
    model.save_pretrained(folder)

    def dequantize(module):
        state = getattr(module.weight, "quant_state", None)
        return module.weight.data if state is None else dequantize_4bit(module.weight.data, state)

    # The first use of a weight may repack it for the processor.
    weights = weights_of(model, dequantize)
    return logits(model), weights


@maker("torchao-int8")
def torchao_int8(folder):
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    model = reloaded(TorchAoConfig(Int8WeightOnlyConfig(version=2)))
    model.save_pretrained(folder)

    def dequantize(module):
        is_plain = type(module.weight) is torch.nn.Parameter
        return module.weight if is_plain else module.weight.dequantize()

    return logits(model), weights_of(model, dequantize)


@maker("hqq-4bits")
def hqq_4bits(folder):
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    model = plain()
    config = BaseQuantizeConfig(nbits=4, group_size=32, axis=1)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            new = HQQLinear(module, config, compute_dtype=torch.float32, device="cpu")
            model.set_submodule(name, new)
    tensors = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads(CONFIG.to_json_string())
    settings["quantization_config"] = {
        "quant_method": "hqq",
        "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32, "axis": 1}},
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    of = lambda module: module.dequantize() if hasattr(module, "W_q") else module.weight
    return logits(model), weights_of(model, of)


def reloaded(config):
    """The plain model as transformers quantises it while it loads."""
    with tempfile.TemporaryDirectory() as place:
        plain().save_pretrained(place)
        return AutoModelForCausalLM.from_pretrained(
            place, quantization_config=config, dtype=torch.float32, device_map="cpu"
        ).eval()


def make(name):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package, weights = MAKERS[name](folder)
    assert (folder / "model.safetensors").exists(), list(folder.iterdir())
    (folder / "generation_config.json").unlink(missing_ok=True)
    found = {
        "tokens": TOKENS[0],
        "package": package.float(),
        "exact": exact(weights),
        "plain": exact(plain().state_dict()),
    }
    save_file({key: value.contiguous() for key, value in found.items()}, folder / LOGITS)
    off = lambda key: (found[key].double() - found["exact"]).abs().max().item()
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(name, f"{size} bytes, package off by {off('package'):.2e}, plain by {off('plain'):.2e}")


if __name__ == "__main__":
    for name in sys.argv[1:] or MAKERS:
        make(name)
