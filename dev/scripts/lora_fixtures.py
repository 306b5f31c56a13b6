"""Makes the small LoRA adapters that the tests merge, and what PEFT makes of them on a CPU.

Each folder in dev/testing/fixtures/lora has a checkpoint (model.safetensors), adapters in
the order in which they are merged (adapter-1 and so on: directories of PEFT, or files), and
expected.safetensors: the tensors that change. In folders whose names begin with exact, sums of
products are exact in F32, so every bit must be the same. The others differ in the last bits,
because the order of a sum of products is not defined in PyTorch.

Run with: python dev/scripts/lora_fixtures.py

Needs, from PyPI: torch 2.15, peft 0.21.2, transformers 5.24, safetensors.
"""

import json
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

OUT = Path(__file__).resolve().parents[2] / "dev/testing/fixtures/lora"
F32, BF16 = torch.float32, torch.bfloat16


class Attention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.q_proj = nn.Linear(12, 10, bias=bias)
        self.v_proj = nn.Linear(12, 12, bias=bias)
        self.c_attn = Conv1D(9, 12)
        self.c_square = Conv1D(12, 12)


class Model(nn.Module):
    """One layer of each kind, by names that models have."""

    def __init__(self, bias=False):
        super().__init__()
        self.embed = nn.Embedding(14, 12)
        self.square = nn.Embedding(12, 12)
        self.layers = nn.ModuleList([Attention(bias), Attention(bias)])
        self.conv = nn.Conv2d(3, 4, 3, bias=bias)
        self.point = nn.Conv2d(3, 4, 1, bias=bias)
        self.line = nn.Conv1d(3, 4, 5, bias=bias)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 5, bias=True)


def random(model, seed, integers=False):
    """Gives every parameter new values. Those of a kind that is not a weight stay positive."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        if integers:
            values = torch.randint(-8, 9, shape, generator=generator).to(F32)
        else:
            values = torch.randn(shape, generator=generator)
        if "magnitude" in name:
            values = values.abs() + 0.5
        parameter.data = values.to(parameter.dtype)


def tensors(model):
    return {name: value.contiguous().clone() for name, value in model.state_dict().items()}


def case(name, configs, bias=False, integers=False, dtype=F32, without="none"):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    base = Model(bias)
    random(base, 1, integers)
    base = base.to(dtype).to(F32)
    stored = {k: v.to(dtype) for k, v in tensors(base).items() if not k.startswith(without)}
    save_file(stored, folder / "model.safetensors")
    configs = [LoraConfig(**config) for config in configs]
    model = get_peft_model(base, configs[0], adapter_name="adapter-1")
    for number, config in enumerate(configs[1:], 2):
        model.add_adapter(f"adapter-{number}", config)
    random(model, 2, integers)
    # The base keeps its values; only what belongs to adapters is new.
    for key, parameter in model.named_parameters():
        original = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
        original = original.replace(".original_module.", ".")
        keeps = not (key.endswith(".bias") and configs[0].bias == "all")
        if original in stored and keeps:
            parameter.data = stored[original].to(F32).clone()
    names = [f"adapter-{number}" for number in range(1, len(configs) + 1)]
    model.save_pretrained(folder, selected_adapters=names)
    if not (folder / "adapter-1").exists():
        (folder / "adapter-1").mkdir()
        for file in ["adapter_config.json", "adapter_model.safetensors"]:
            (folder / file).rename(folder / "adapter-1" / file)
    for readme in folder.rglob("README.md"):
        readme.unlink()
    for file in folder.rglob("adapter_config.json"):
        # A set in no order.
        config = json.loads(file.read_text())
        config["target_modules"].sort()
        file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    merged = model.merge_and_unload(adapter_names=names)
    expected = {name: value.to(dtype) for name, value in tensors(merged).items()}
    is_new = lambda k, v: k not in stored or not torch.equal(v, stored[k])
    expected = {k: v for k, v in expected.items() if is_new(k, v)}
    save_file(expected, folder / "expected.safetensors", {"reference": "peft merge_and_unload"})
    print(name, sorted(expected))


LINEAR = ["q_proj", "v_proj"]
RANDOM = {"init_lora_weights": False}
case("exact-rank-1", [{"r": 1, "lora_alpha": 3, "target_modules": LINEAR, **RANDOM}])
INTEGERS = {"r": 8, "lora_alpha": 16, "target_modules": LINEAR}
case("exact-integers", [{**INTEGERS, **RANDOM}], integers=True)
case("linear", [{"r": 5, "lora_alpha": 8, "target_modules": LINEAR, **RANDOM}])
case("bf16", [{"r": 4, "lora_alpha": 8, "target_modules": LINEAR, **RANDOM}], dtype=BF16)
PATTERNS = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.v_proj": 3}}
case("rslora", [{"r": 4, "use_rslora": True, "target_modules": LINEAR, **PATTERNS, **RANDOM}])
CONV1D = {"target_modules": ["c_attn", "c_square"], "fan_in_fan_out": True}
case("fan-in-fan-out", [{"r": 3, "lora_alpha": 5, **CONV1D, **RANDOM}])
EMBEDDINGS = {"target_modules": ["embed", "square"]}
case("embedding", [{"r": 3, "lora_alpha": 5, **EMBEDDINGS, **RANDOM}])
CONVOLUTIONS = {"target_modules": ["conv", "point", "line"]}
case("convolution", [{"r": 2, "lora_alpha": 5, **CONVOLUTIONS, **RANDOM}])
DORA = {"use_dora": True, "r": 3, "lora_alpha": 4, **RANDOM}
case("dora", [{"target_modules": LINEAR + ["conv", "point"], **DORA}])
case("dora-embedding", [{**EMBEDDINGS, **DORA}])
case("dora-fan-in-fan-out", [{**CONV1D, **DORA}])
WHOLE = {"modules_to_save": ["head", "norm"], "bias": "all"}
case("modules-to-save", [{"r": 2, "target_modules": LINEAR, **WHOLE, **RANDOM}], bias=True)
HEAD = {"modules_to_save": ["head", "score"]}
case("new-head", [{"r": 2, "target_modules": LINEAR, **HEAD, **RANDOM}], without="head")
BIAS = {"lora_bias": True, "target_modules": ["head", "conv"]}
case("lora-bias", [{"r": 2, **BIAS, **RANDOM}], bias=True)
case("two", [
    {"r": 2, "lora_alpha": 3, "target_modules": LINEAR, **RANDOM},
    {"r": 3, "lora_alpha": 5, "target_modules": ["v_proj", "embed"], **RANDOM},
])
case("two-dora", [
    {"target_modules": LINEAR, **DORA},
    {"r": 3, "lora_alpha": 5, "target_modules": LINEAR, **RANDOM},
    {"target_modules": ["v_proj"], **DORA},
])


def kohya():
    """One file as kohya's scripts write it. The formula is theirs: W + alpha / rank * up @ down."""
    folder = OUT / "exact-kohya"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base = Model()
    random(base, 3, integers=True)
    base = {f"model.diffusion_model.{name}": value for name, value in tensors(base).items()}
    save_file(base, folder / "model.safetensors")
    generator = torch.Generator().manual_seed(4)
    new = lambda *shape: torch.randint(-8, 9, shape, generator=generator).to(F32)
    adapter, expected = {}, {}
    for module, down, up, alpha in [
        ("layers.0.q_proj", new(4, 12), new(10, 4), 2.0),
        ("layers.1.v_proj", new(2, 12), new(12, 2), None),
        ("conv", new(2, 3, 3, 3), new(4, 2, 1, 1), 8.0),
    ]:
        key = "lora_unet_" + module.replace(".", "_")
        adapter[f"{key}.lora_down.weight"], adapter[f"{key}.lora_up.weight"] = down, up
        if alpha is not None:
            adapter[f"{key}.alpha"] = torch.tensor(alpha)
        rank = len(down)
        product = (up.flatten(1) @ down.flatten(1)).reshape(*up.shape[:1], *down.shape[1:])
        name = f"model.diffusion_model.{module}.weight"
        expected[name] = base[name] + (alpha or rank) / rank * product
    save_file(adapter, folder / "adapter-1.safetensors")
    save_file(expected, folder / "expected.safetensors", {"reference": kohya.__doc__})
    print("exact-kohya", sorted(adapter))


kohya()
