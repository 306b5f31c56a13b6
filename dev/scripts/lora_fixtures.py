"""Makes the small LoRA adapters that the tests merge, and the results of their libraries on a CPU.

Each folder in dev/testing/fixtures/lora has a checkpoint (model.safetensors), adapters in
the order in which they are merged (adapter-1 and so on: directories of PEFT, or files), and
expected.safetensors: the tensors that change. In folders whose names begin with exact, sums of
products are exact in F32, so every bit must be the same. The others differ in the last bits,
because the order of a sum of products is not defined in PyTorch.

The results are those of PEFT, LyCORIS and mlx-lm. PEFT before 0.19 does not run with these: its
formula for experts is written out.

Run with: python dev/scripts/lora_fixtures.py [FOLDER...]

Needs, from PyPI: torch 2.15, peft 0.21.2, transformers 5.24, safetensors, lycoris-lora 4.1.3,
mlx[cpu], mlx-lm 0.32.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from lycoris.modules.full import FullModule
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from lycoris.modules.norms import NormModule
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
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


class Kinds(nn.Module):
    """Layers that LoHa and LoKr change, small enough for products to be whole."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 12, bias=False)
        self.v = nn.Linear(6, 8, bias=False)
        self.conv = nn.Conv2d(4, 6, 3, bias=False)
        self.point = nn.Conv2d(4, 6, 1, bias=False)
        self.line = nn.Conv1d(4, 6, 3, bias=False)
        self.norm = nn.LayerNorm(6)


class Experts(nn.Module):
    """Stacked weights as in transformers 5: [experts, out, in], or as gpt-oss has them."""

    def __init__(self, is_transposed, inner):
        super().__init__()
        self.is_transposed = is_transposed
        shape = (lambda *dims: dims) if is_transposed else (lambda a, b: (b, a))
        self.gate_up_proj = nn.Parameter(torch.zeros(3, *shape(6, 2 * inner)))
        self.down_proj = nn.Parameter(torch.zeros(3, *shape(inner, 6)))


class Mixture(nn.Module):
    def __init__(self, is_transposed=False, inner=4):
        super().__init__()
        self.experts = Experts(is_transposed, inner)
        self.router = nn.Linear(6, 3, bias=False)


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


def is_wanted(name):
    return not sys.argv[1:] or name in sys.argv[1:]


def new_folder(name):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def case(name, configs, bias=False, integers=False, dtype=F32, without="none", base=None):
    if not is_wanted(name):
        return
    folder = new_folder(name)
    torch.manual_seed(0)
    base = base or Model(bias)
    random(base, 1, integers)
    base = base.to(dtype).to(F32)
    stored = {k: v.to(dtype) for k, v in tensors(base).items() if not k.startswith(without)}
    save_file(stored, folder / "model.safetensors")
    configs = [LoraConfig(**it) if isinstance(it, dict) else it for it in configs]
    model = get_peft_model(base, configs[0], adapter_name="adapter-1")
    for number, config in enumerate(configs[1:], 2):
        model.add_adapter(f"adapter-{number}", config)
    random(model, 2, integers)
    # The base keeps its values; only the adapters' values are new.
    for key, parameter in model.named_parameters():
        original = key.removeprefix("base_model.model.").replace(".base_layer", "")
        original = original.replace(".original_module.", ".")
        keeps = not (key.endswith(".bias") and getattr(configs[0], "bias", "") == "all")
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
        config["target_modules"] = sorted(config["target_modules"] or [])
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
KINDS = {"r": 2, "alpha": 3, "init_weights": False}
LAYERS = ["q", "v", "conv", "point", "line"]
case("loha", [LoHaConfig(target_modules=LAYERS, rank_dropout=0.1, **KINDS)], base=Kinds())
TUCKER = {"use_effective_conv2d": True, "target_modules": ["conv", "line"]}
case("loha-tucker", [LoHaConfig(**TUCKER, **KINDS)], base=Kinds())
# With a full lokr_w2 of a Conv1d, PEFT's product has its numbers in another order.
RANKS = {"rank_pattern": {"v": 8, "q": 1, "line": 1}, "alpha_pattern": {"q": 5}}
BOTH = {"target_modules": LAYERS, "decompose_both": True, "module_dropout": 0.1}
case("lokr", [LoKrConfig(**BOTH, **RANKS, **KINDS)], base=Kinds())
KINDS["r"] = 1
# PEFT fails to merge one with a Conv1d.
TUCKER["target_modules"] = ["conv"]
case("lokr-tucker", [LoKrConfig(**TUCKER, decompose_factor=2, **KINDS)], base=Kinds())
EXPERTS = {
    "target_modules": ["router"],
    "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
}
case("experts", [{"r": 2, "lora_alpha": 3, **EXPERTS, **RANDOM}], base=Mixture())
# One of both weights of each expert is a square.
case("experts-in-out", [{"r": 2, **EXPERTS, **RANDOM}], base=Mixture(is_transposed=True, inner=6))


def experts_before_0_19():
    """Squares by PEFT 0.18: `torch.einsum("o r e, e r i -> e i o", weight_B, weight_A)`."""
    if not is_wanted("experts-0.18"):
        return
    folder = new_folder("experts-0.18")
    generator = torch.Generator().manual_seed(6)
    new = lambda *shape: torch.randn(shape, generator=generator)
    base = {"mlp.experts.down_proj": new(3, 6, 6)}
    down, up = new(6, 6), new(6, 6)
    prefix = "base_model.model.mlp.experts"
    adapter = {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}
    (folder / "adapter-1").mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "peft_version": "0.18.1"}
    config |= {"target_parameters": ["experts.down_proj"], "fan_in_fan_out": False}
    (folder / "adapter-1/adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    delta = torch.einsum("o r e, e r i -> e i o", up.reshape(6, -1, 3), down.reshape(3, -1, 6))
    expected = {name: value + 2 * delta for name, value in base.items()}
    save_file(base, folder / "model.safetensors")
    save_file(adapter, folder / "adapter-1/adapter_model.safetensors")
    save_file(expected, folder / "expected.safetensors")


experts_before_0_19()


def lycoris(name, modules):
    """One file as LyCORIS saves it, with the weights that it merges."""
    if not is_wanted(name):
        return
    folder = new_folder(name)
    base = Kinds()
    random(base, 7)
    layers = dict(base.named_modules())
    save_file(tensors(base), folder / "model.safetensors")
    adapter, expected = {}, {}
    for number, (layer, kind, options) in enumerate(modules):
        module = kind(f"lycoris_{layer}", layers[layer], 1.0, **options)
        random(module, number + 8)
        if kind is FullModule:
            module._org_weight = [layers[layer].weight.data.clone()]
        state = {key: value.detach().clone().contiguous() for key, value in module.state_dict().items()}
        for key, value in state.items():
            adapter[f"lycoris_{layer}.{key}"] = value
        shape, plain, bias = layers[layer].weight.shape, layers[layer].weight, None
        if kind is FullModule:
            weight = module.weight
        elif kind is NormModule:
            weight, bias = module.get_merged_weight()
        elif kind is LoConModule:
            weight = plain + module.get_diff_weight(1, shape)[0]
        else:
            # As in training. `get_merged_weight` multiplies twice with the factor.
            weight = plain + module.get_weight(shape)
        if options.get("weight_decompose"):
            weight = module.apply_weight_decompose(weight)
        expected[f"{layer}.weight"] = weight.detach().contiguous().clone()
        if bias is not None:
            expected[f"{layer}.bias"] = bias.detach().clone()
    save_file(adapter, folder / "adapter-1.safetensors")
    save_file(expected, folder / "expected.safetensors", {"reference": "LyCORIS"})
    print(name, {key: tuple(value.shape) for key, value in adapter.items()})


RANK = {"lora_dim": 2, "alpha": 3}
DORA_OUT = {"weight_decompose": True, **RANK}
DORA_IN = {"wd_on_out": False, **DORA_OUT}
lycoris("lycoris", [
    ("q", LohaModule, RANK),
    ("v", LokrModule, {"decompose_both": True, "lora_dim": 1, "alpha": 2}),
    ("conv", LoConModule, {"use_tucker": True, **RANK}),
    ("line", LohaModule, {"use_tucker": True, **RANK}),
    ("point", FullModule, {}),
    ("norm", NormModule, {}),
])
lycoris("lycoris-dora", [
    ("q", LoConModule, DORA_OUT),
    ("v", LohaModule, DORA_IN),
    ("conv", LoConModule, DORA_IN),
    ("line", LokrModule, {"factor": 2, **DORA_OUT}),
])


def mlx(name, kind):
    """A directory as mlx-lm saves it, with the weights that it fuses."""
    import mlx.core as mx
    import mlx.nn
    from mlx_lm.models.switch_layers import SwitchLinear
    from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
    from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear

    if not is_wanted(name):
        return
    folder = new_folder(name)
    (folder / "adapter-1").mkdir()
    mx.random.seed(9)
    linear, embedding, layers = LoRALinear, LoRAEmbedding, {}
    if kind == "dora":
        linear, embedding = DoRALinear, DoRAEmbedding
    else:
        layers["mlp.switch_mlp.up_proj"] = (LoRASwitchLinear, SwitchLinear(6, 4, 3, bias=False))
    layers["self_attn.q_proj"] = (linear, mlx.nn.Linear(6, 8, bias=True))
    layers["self_attn.k_proj"] = (linear, mlx.nn.Linear(6, 6, bias=False))
    layers["embed_tokens"] = (embedding, mlx.nn.Embedding(10, 6))
    base, adapter, expected = {}, {}, {}
    for layer, (lora, plain) in layers.items():
        path = f"model.layers.0.{layer}"
        base |= {f"{path}.{key}": value for key, value in plain.parameters().items()}
        module = lora.from_base(plain, r=2, scale=2.5)
        for key, value in module.parameters().items():
            if key.startswith("lora") or key == "m":
                adapter[f"{path}.{key}"] = mx.random.normal(value.shape)
                module[key] = adapter[f"{path}.{key}"]
        expected[f"{path}.weight"] = module.fuse().weight
    mx.save_safetensors(str(folder / "model.safetensors"), base)
    mx.save_safetensors(str(folder / "adapter-1/adapters.safetensors"), adapter)
    mx.save_safetensors(str(folder / "expected.safetensors"), expected)
    settings = {"fine_tune_type": kind, "num_layers": 1, "lr_schedule": None, "seed": 0}
    settings["lora_parameters"] = {"rank": 2, "dropout": 0.0, "scale": 2.5}
    (folder / "adapter-1/adapter_config.json").write_text(json.dumps(settings, indent=4) + "\n")
    print(name, sorted(adapter))


mlx("mlx", "lora")
mlx("mlx-dora", "dora")


def kohya():
    """One file as kohya's scripts write it. The formula is theirs: W + alpha / rank * up @ down."""
    if not is_wanted("exact-kohya"):
        return
    folder = new_folder("exact-kohya")
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
