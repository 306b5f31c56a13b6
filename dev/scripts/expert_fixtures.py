"""Makes the small mixtures of experts that the tests split and stack, as transformers stores them.

Each folder in dev/testing/fixtures/experts is named after an architecture, and has the tensors of
one layer of a tiny random model: stacked.safetensors as transformers 5 holds them in memory, and
split.safetensors with a matrix for each expert, once also as a file of PyTorch. Where the Hub has experts one by one, transformers'
own conversion made that file. Where it has them stacked, this script cuts them as the forward pass
of the model does, and stacked.safetensors has the layout of the Hub.

Run with: python dev/scripts/expert_fixtures.py [MODEL_TYPE ...]

Needs, from PyPI: torch 2.15, transformers 5.24, safetensors.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

OUT = Path(__file__).resolve().parents[2] / "dev/testing/fixtures/experts"
# Hidden size 8, and 6 numbers inside an expert: no two dimensions of a stack are equal.
SIZES = {
    "hidden_size": 8,
    "intermediate_size": 6,
    "moe_intermediate_size": 6,
    "shared_expert_intermediate_size": 4,
    "moe_shared_expert_intermediate_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 16,
    "num_experts": 3,
    "num_local_experts": 3,
    "n_routed_experts": 3,
    "moe_num_experts": 3,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# The architectures that transformers converts, with other settings than the sizes.
CONVERTED = {
    "mixtral": {},
    "minimax": {},
    "minimax_m2": {},
    "phimoe": {},
    "lfm2_moe": {"num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    "jamba": {"mamba_d_state": 4, "mamba_dt_rank": 2},
    "nemotron_h": {"moe_shared_expert_intermediate_size": 4},
    "afmoe": {},
    "cohere2_moe": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "dots1": {},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "flex_olmo": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "glm_moe_dsa": {},
    "hunyuan_v1_moe": {},
    "hy_v3": {},
    "laguna": {},
    "olmoe": {},
    "qwen2_moe": {},
    "qwen3_moe": {},
    "qwen3_next": {},
    "qwen3_5_moe_text": {},
    "solar_open": {},
}

# The architectures with stacks on the Hub: the first half of the outputs of a stack is the gate, or
# every second output; and whether the outputs are columns.
STACKED = {
    "llama4_text": ("halves", True),
    "gpt_oss": ("interleaved", True),
    "gemma4_text": ("halves", False),
    "aria_text": ("halves", True),
    "granitemoe": ("halves", False),
    "qwen3_vl_moe_text": ("halves", True),
}
# The names of stacks, and how many matrices of an expert each has.
STACKS = {
    "experts.gate_up_proj": 2,
    "experts.down_proj": 1,
    "experts.fc1.weight": 2,
    "experts.fc2.weight": 1,
    "moe.input_linear.weight": 2,
    "moe.output_linear.weight": 1,
}
OTHERS = {
    "gemma4_text": {"enable_moe_block": True, "hidden_size_per_layer_input": 0},
    "aria_text": {"moe_num_experts": 3},
}


def model(kind, settings):
    """Makes a model with random weights, also where it would start with zeros."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **settings})
    torch.manual_seed(0)
    try:
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except ValueError:
        made = transformers.AutoModel.from_config(config, dtype=torch.bfloat16)
    for parameter in [*made.parameters(), *made.buffers()]:
        if parameter.dtype.is_floating_point:
            parameter.data = torch.randn(parameter.shape).to(parameter.dtype)
    return made


def is_of_mixture(name):
    return "expert" in name or "_moe." in name


def saved(made, original):
    """Returns the tensors of the layer of experts, as transformers saves them."""
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder, save_original_format=original)
        tensors = load_file(Path(folder) / "model.safetensors")
    layers = {name.split("layers.")[1].split(".")[0] for name in tensors if is_of_mixture(name)}
    layer = f"layers.{max(layers)}."
    skipped = ("attn", "norm", "conv", "mamba", "per_layer", "layer_scalar")
    return {
        name: tensor.contiguous().clone()
        for name, tensor in tensors.items()
        if layer in name and not any(part in name for part in skipped)
    }


def split(tensors, kind):
    """Cuts stacks into matrices of `outputs x inputs`, as the forward pass does."""
    order, is_transposed = STACKED[kind]
    names = ["w1", "w3", "w2"] if kind == "granitemoe" else ["gate_proj", "up_proj", "down_proj"]
    found = {}
    for name, tensor in tensors.items():
        stack = next((it for it in STACKS if name.removesuffix("_bias").endswith(it)), None)
        if stack is None:
            found[name] = tensor
            continue
        is_bias = name.endswith("_bias")
        module = name.removesuffix("_bias").removesuffix(stack.split(".", 1)[1])
        module = module.removesuffix("experts.")
        for number, expert in enumerate(tensor):
            expert = expert.T if is_transposed and not is_bias else expert
            parts = {names[2]: expert}
            if STACKS[stack] == 2:
                halves = [expert[::2], expert[1::2]] if order == "interleaved" else expert.chunk(2)
                parts = dict(zip(names, halves))
            for part, matrix in parts.items():
                end = "bias" if is_bias else "weight"
                found[f"{module}experts.{number}.{part}.{end}"] = matrix.contiguous().clone()
    return found


def write(kind, config, tensors):
    folder = OUT / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config) + "\n")
    for name, of_file in tensors.items():
        save_file(of_file, folder / f"{name}.safetensors", {"format": "pt"})
    if kind == "mixtral":
        torch.save(tensors["split"], folder / "split.bin")
    print(kind, {name: len(of_file) for name, of_file in tensors.items()})


def main():
    wanted = sys.argv[1:] or [*CONVERTED, *STACKED]
    for kind in wanted:
        made = model(kind, {**CONVERTED.get(kind, {}), **OTHERS.get(kind, {})})
        hub = saved(made, True)
        if kind in CONVERTED:
            tensors = {"split": hub, "stacked": saved(made, False)}
            if kind == "nemotron_h":
                # transformers renames the prefix of all tensors, also when it loads.
                of_v5 = tensors["stacked"].items()
                tensors["stacked"] = {n.replace("model.", "backbone.", 1): t for n, t in of_v5}
        else:
            if kind == "qwen3_vl_moe_text":
                # transformers 5 reads both, and writes stacks that vLLM does not read.
                hub = {n: t.mT.contiguous() if t.dim() == 3 else t for n, t in hub.items()}
            tensors = {"split": split(hub, kind), "stacked": hub}
        config = {"model_type": kind}
        if kind.endswith("_text"):
            config = {"model_type": kind.removesuffix("_text"), "text_config": config}
        write(kind, config, tensors)


main()
