"""Makes the small quantised checkpoints that the tests read.

Each folder in dev/testing/fixtures/quantised has a checkpoint as a scheme stores it
(model.safetensors and its settings), and expected.safetensors: its weights as the reference
implementation of the scheme dequantises them on a CPU. The metadata of that file says which
function that is. The codes and scales are random, from fixed seeds, so all codes occur.
quantize.safetensors beside that folder has a weight, and what compressed-tensors makes of it.

Run with: python dev/scripts/quantised_fixtures.py [CASE ...]

Needs, from PyPI: torch 2.15, safetensors, transformers 5.24, compressed-tensors 0.20,
nvidia-modelopt 0.47, gptqmodel 7.7, autoawq 0.2.9 (its packing_utils.py alone is read),
bitsandbytes 0.50, torchao 0.18, hqq 0.2.8, optimum-quanto 0.2.7 and ninja, comfy-kitchen 0.2.40,
mlx[cpu] 0.32, amd-quark 0.13 and scipy.
"""

import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

OUT = Path(__file__).resolve().parents[2] / "dev/testing/fixtures/quantised"
CASES = {}
F8, F32, BF16, F16 = torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.float16
E8M0 = torch.float8_e8m0fnu
NORM = torch.tensor([1.0, 0.5, -2.0], dtype=BF16)


def case(function):
    """Registers a function that yields cases."""
    CASES[function.__name__] = function
    return function


def write(name, model, expected, reference, config=None, metadata=None, settings="config.json"):
    """Writes one case. `config` is the quantization_config."""
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    model = {"norm.weight": NORM, **model}
    expected = {"norm.weight": NORM, **expected}
    keep = lambda tensors: {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(keep(model), folder / "model.safetensors", metadata or {"format": "pt"})
    save_file(keep(expected), folder / "expected.safetensors", {"reference": reference})
    if config is not None:
        content = {"quantization_config": config} if settings == "config.json" else config
        (folder / settings).write_text(json.dumps(content, indent=1) + "\n")
    print(name, {name: str(t.dtype)[6:] + str(list(t.shape)) for name, t in expected.items()})


def settings(name, content, file="config.json"):
    """Writes settings next to a case."""
    (OUT / name / file).write_text(json.dumps(content, indent=1) + "\n")


def seed(number):
    return torch.Generator().manual_seed(number)


def codes8(shape, number, dtype=F8):
    """Floats of 8 bits with every code except NaN and infinity."""
    codes = torch.randint(0, 256, shape, generator=seed(number), dtype=torch.int32)
    limit = 0x7B if dtype == torch.float8_e5m2 else 0x7E
    codes = torch.where(codes & 0x7F > limit, codes & 0x80, codes)
    return codes.to(torch.uint8).view(dtype)


def ints(low, high, shape, number, dtype=torch.int32):
    return torch.randint(low, high, shape, generator=seed(number)).to(dtype)


def scales(shape, number, dtype=F32):
    return (torch.rand(shape, generator=seed(number)) * 0.02 + 0.001).to(dtype)


def exponents(shape, number):
    return ints(118, 130, shape, number, torch.uint8)


def bytes_of(shape, number):
    return ints(0, 256, shape, number, torch.uint8)


# DeepSeek and its relatives.


@case
def fp8():
    from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import (
        FP8BlockDequantizer,
    )

    reference = "compressed_tensors FP8BlockDequantizer.process"

    def block(weight, scale, size=(128, 128)):
        of = FP8BlockDequantizer(targets=["re:.*layer"], weight_block_size=size, dtype=F32)
        return of.process({"layer.weight": weight, "layer.weight_scale_inv": scale})

    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    weight, scale = codes8((200, 160), 1), scales((2, 2), 2)
    model = {"layer.weight": weight, "layer.weight_scale_inv": scale}
    write("deepseek-fp8-block", model, block(weight, scale), reference, config)
    weight, exponent = codes8((40, 24), 8), exponents((3, 2), 3)
    config = {**config, "scale_fmt": "ue8m0", "weight_block_size": [16, 16]}
    expected = block(weight, exponent.view(E8M0).to(F32), (16, 16))
    model = {"layer.weight": weight, "layer.weight_scale_inv": exponent.view(E8M0)}
    write("deepseek-fp8-e8m0", model, expected, reference, config)
    model = {"layer.weight": weight, "layer.weight_scale_inv": exponent}
    write("deepseek-fp8-u8", model, expected, reference, config)
    model = {"layer.weight": weight, "layer.scale": exponent.view(E8M0)}
    write("deepseek-v4-fp8", model, expected, reference, config)
    formula = "weight.to(float32) * scale, as DeepSeek's weight_dequant"
    weight, scale = codes8((24, 40), 4), torch.tensor(0.0123)
    expected = {"layer.weight": weight.to(F32) * scale}
    model = {
        "layer.weight": weight,
        "layer.weight_scale_inv": scale,
        "layer.activation_scale": torch.tensor(0.5),
    }
    static = {"quant_method": "fp8", "activation_scheme": "static"}
    write("fp8-per-tensor", model, expected, formula, static)
    model = {"layer.weight": weight, "layer.qscale_weight": scale}
    write("fp8-qscale-weight", model, expected, formula, {"quant_method": "fp8"})
    rows = scales((24, 1), 5)
    model = {"layer.weight": weight, "layer.weight_scale": rows}
    model["layer.input_scale_ub"] = torch.tensor([1200.0])
    expected = {"layer.weight": weight.to(F32) * rows}
    write("fbgemm-fp8", model, expected, formula, {"quant_method": "fbgemm_fp8"})
    experts, columns = codes8((2, 24, 40), 6), scales((2, 1, 40), 7)
    model = {"experts.gate_up_proj": experts, "experts.gate_up_proj_scale": columns}
    expected = {"experts.gate_up_proj": experts.to(F32) * columns}
    write("fbgemm-fp8-experts", model, expected, formula, {"quant_method": "fbgemm_fp8"})


def e2m1(packed, high_first=False):
    """The numbers of packed E2M1 codes."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    low, high = table[(packed & 15).long()], table[(packed >> 4).long()]
    pair = (high, low) if high_first else (low, high)
    return torch.stack(pair, -1).flatten(-2)


@case
def deepseek_v4_experts():
    packed, scale = bytes_of((24, 48), 10), exponents((24, 3), 11).view(E8M0)
    expected = e2m1(packed) * scale.to(F32).repeat_interleave(32, -1)
    model = {"layer.weight": packed.view(torch.int8), "layer.scale": scale}
    formula = "gptqmodel dequantize_deepseek_v4_fp4_expert: e2m1 * 2^(scale - 127)"
    config = {"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [128, 128]}
    write("deepseek-v4-experts-fp4", model, {"layer.weight": expected}, formula, config)


# compressed-tensors.


def compressed(name, form, tensors, weights, extra=None, version="0.20.0"):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(form)
    found = compressor.decompress(dict(tensors), scheme)["weight"]
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "version": version,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    model = {f"layer.{key}": tensor for key, tensor in {**tensors, **(extra or {})}.items()}
    reference = f"compressed_tensors {compressor.__name__}.decompress"
    write(name, model, {"layer.weight": found}, reference, config)


@case
def ct_scaled():
    weight = codes8((24, 64), 20)
    of = {"num_bits": 8, "type": "float", "symmetric": True}
    for kind, shape, more in [
        ("tensor", (1,), {}),
        ("channel", (24, 1), {}),
        ("group", (24, 4), {"group_size": 16}),
    ]:
        tensors = {"weight": weight, "weight_scale": scales(shape, 21)}
        extra = {"input_scale": torch.tensor([0.5])}
        args = {**of, "strategy": kind, **more}
        compressed(f"ct-float-{kind}", "float-quantized", tensors, args, extra)
    tensors = {"weight": codes8((40, 48), 22), "weight_scale": scales((3, 3), 23)}
    args = {**of, "strategy": "block", "block_structure": [16, 16]}
    compressed("ct-float-block", "float-quantized", tensors, args)
    weight = ints(-128, 128, (24, 64), 24, torch.int8)
    args = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    tensors = {"weight": weight, "weight_scale": scales((24, 1), 25)}
    compressed("ct-int-channel", "int-quantized", tensors, args)
    zeros = ints(-100, 100, (24, 1), 26, torch.int8)
    args = {**args, "symmetric": False}
    tensors = {**tensors, "weight_zero_point": zeros}
    compressed("ct-int-zero-point", "int-quantized", tensors, args)
    tensors = {"weight": weight, "weight_scale": scales((24, 1), 27, F32)}
    args = {**args, "symmetric": True}
    compressed("ct-naive", "naive-quantized", tensors, args)


@case
def ct_packed():
    for bits in range(2, 9):
        words = 64 * bits // 32
        tensors = {
            "weight_packed": ints(-(2**31), 2**31, (24, words), 30 + bits),
            "weight_scale": scales((24, 4), 31),
            "weight_shape": torch.tensor([24, 64]),
        }
        args = {"num_bits": bits, "type": "int", "symmetric": True}
        args = {**args, "strategy": "group", "group_size": 16}
        compressed(f"ct-pack-{bits}bits", "pack-quantized", tensors, args)
    tensors = {
        "weight_packed": ints(-(2**31), 2**31, (24, 8), 40),
        "weight_scale": scales((24, 4), 41),
        "weight_shape": torch.tensor([24, 64]),
        "weight_zero_point": ints(-(2**31), 2**31, (3, 4), 42),
    }
    args = {"num_bits": 4, "type": "int", "symmetric": False}
    args = {**args, "strategy": "group", "group_size": 16}
    compressed("ct-pack-4bits-asym", "pack-quantized", tensors, args)
    # Files up to 0.17 and the order of groups: by the formula, (q - z) * s.
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "version": "0.17.0",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 3, "type": "int"}}
        },
    }
    codes = ints(0, 8, (24, 64), 43, torch.int64)
    padded = torch.nn.functional.pad(codes, (0, 6)).view(24, 7, 10)
    words = (padded << torch.arange(0, 30, 3)).sum(-1).to(torch.int32)
    scale = scales((24, 1), 44)
    model = {
        "layer.weight_packed": words,
        "layer.weight_scale": scale,
        "layer.weight_shape": torch.tensor([24, 64]),
    }
    expected = {"layer.weight": (codes - 4).to(F32) * scale}
    formula = "compressed-tensors 0.17's packing: ten codes of 3 bits in a word"
    write("ct-pack-3bits-old", model, expected, formula, config)
    codes, scale = ints(0, 16, (24, 64), 45, torch.int64), scales((24, 4), 46)
    groups = ints(0, 4, (64,), 47)
    words = (codes.view(24, 8, 8) << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)
    model = {
        "layer.weight_packed": words,
        "layer.weight_scale": scale,
        "layer.weight_shape": torch.tensor([24, 64]),
        "layer.weight_g_idx": groups,
    }
    expected = {"layer.weight": (codes - 8).to(F32) * scale[:, groups.long()]}
    config = json.loads(json.dumps(config).replace('"num_bits": 3', '"num_bits": 4'))
    write("ct-pack-4bits-gidx", model, expected, "(q - 8) * scale[:, g_idx]", config)


@case
def ct_floats():
    tensors = {
        "weight_packed": bytes_of((24, 48), 50),
        "weight_scale": codes8((24, 6), 51).abs(),
        "weight_global_scale": torch.tensor([371.5]),
    }
    scale = tensors["weight_scale"].to(F32) / tensors["weight_global_scale"]
    expected = e2m1(tensors["weight_packed"]) * scale.repeat_interleave(16, -1)
    args = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group"}
    config = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "version": "0.20.0",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": args}},
    }
    model = {f"layer.{name}": tensor for name, tensor in tensors.items()}
    model["layer.input_global_scale"] = torch.tensor([2.0])
    formula = "compressed_tensors NVFP4PackedCompressor.decompress in float32: e2m1 * (s / global)"
    write("ct-nvfp4", model, {"layer.weight": expected}, formula, config)
    tensors = {"weight_packed": bytes_of((24, 48), 52), "weight_scale": exponents((24, 3), 53)}
    args = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group"}
    args = {**args, "group_size": 32, "scale_dtype": "torch.uint8"}
    compressed("ct-mxfp4", "mxfp4-pack-quantized", tensors, args)
    tensors = {"weight": codes8((24, 96), 54), "weight_scale": exponents((24, 3), 55)}
    args = {**args, "num_bits": 8}
    compressed("ct-mxfp8", "mxfp8-quantized", tensors, args)
    tensors = {"weight_packed": bytes_of((24, 72), 56), "weight_scale": exponents((24, 3), 57)}
    args = {**args, "num_bits": 6}
    compressed("ct-mxfp6", "mxfp6-pack-quantized", tensors, args)


# GPTQ, AutoRound and AWQ.


def gptq_tensors(bits, rows, columns, group, number, order=None):
    groups = 1 if group < 0 else columns // group
    tensors = {
        "layer.qweight": ints(-(2**31), 2**31, (columns * bits // 32, rows), number),
        "layer.qzeros": ints(-(2**31), 2**31, (groups, rows * bits // 32), number + 1),
        "layer.scales": scales((groups, rows), number + 2, F16),
    }
    if order is not None:
        tensors["layer.g_idx"] = order
    return tensors


def gptq_expected(tensors, config):
    from gptqmodel.utils.model_dequant import convert_gptq_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        tensors = dict(tensors)
        size = config["group_size"]
        columns = tensors["layer.qweight"].shape[0] * 32 // config["bits"]
        size = columns if size < 0 else size
        tensors.setdefault("layer.g_idx", torch.arange(columns, dtype=torch.int32) // size)
        # In F32, because the scales are.
        tensors["layer.scales"] = tensors["layer.scales"].float()
        save_file(tensors, path)
        return convert_gptq_file(path, torch.float32, config, "cpu")


@case
def gptq():
    reference = "gptqmodel convert_gptq_file"
    sequence = torch.arange(96, dtype=torch.int32) // 32
    for bits in [2, 3, 4, 8]:
        config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False}
        config = {**config, "sym": False, "checkpoint_format": "gptq"}
        tensors = gptq_tensors(bits, 32, 96, 32, 60 + bits, sequence)
        expected = gptq_expected(tensors, config)
        write(f"gptq-v1-{bits}bits", tensors, expected, reference, config)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}
    tensors = gptq_tensors(4, 32, 96, 32, 70, sequence)
    write("gptq-v2-4bits", tensors, gptq_expected(tensors, config), reference, config)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    order = sequence[torch.randperm(96, generator=seed(71))]
    tensors = gptq_tensors(4, 32, 96, 32, 72, order)
    expected = gptq_expected(tensors, {**config, "checkpoint_format": "gptq"})
    write("gptq-desc-act", tensors, expected, reference, config)
    config = {"bits": 4, "group_size": -1, "checkpoint_format": "gptq"}
    tensors = gptq_tensors(4, 64, 96, -1, 73)
    expected = gptq_expected(tensors, config)
    write("gptq-whole", tensors, expected, reference, config, None, "quantize_config.json")
    for name, packing, version in [
        ("autoround-4bits", "auto_round", "gptq_v2"),
        ("autoround-gptq", "auto_round:auto_gptq", "gptq"),
    ]:
        config = {"quant_method": "auto-round", "bits": 4, "group_size": 32}
        config["packing_format"] = packing
        tensors = gptq_tensors(4, 32, 96, 32, 74)
        expected = gptq_expected(tensors, {**config, "checkpoint_format": version})
        write(name, tensors, expected, reference, config)


@case
def awq():
    spec = importlib.util.find_spec("awq")
    path = Path(spec.submodule_search_locations[0]) / "utils/packing_utils.py"
    spec = importlib.util.spec_from_file_location("packing_utils", path)
    packing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packing)
    for name, rows, columns, group in [("awq-gemm", 40, 64, 32), ("awq-gemm-128", 24, 256, 128)]:
        tensors = {
            "layer.qweight": ints(-(2**31), 2**31, (columns, rows // 8), 80),
            "layer.qzeros": ints(-(2**31), 2**31, (columns // group, rows // 8), 81),
            "layer.scales": scales((columns // group, rows), 82, F16),
        }
        qweight, qzeros, scale = tensors.values()
        found = packing.dequantize_gemm(qweight, qzeros, scale.float(), 4, group)
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
        config["zero_point"] = True
        reference = "autoawq dequantize_gemm"
        write(name, tensors, {"layer.weight": found.T.float()}, reference, config)


# bitsandbytes.


@case
def bitsandbytes():
    import bitsandbytes.functional as of

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}

    def four(name, shape, kind, nested=False, storage=torch.uint8):
        weight = torch.randn(shape, generator=seed(90))
        packed, state = of.quantize_4bit(
            weight,
            blocksize=64,
            quant_type=kind,
            compress_statistics=nested,
            quant_storage=storage,
        )
        found = of.dequantize_4bit(packed, state)
        stored = {"layer.weight": packed}
        for key, value in state.as_dict(packed=True).items():
            stored[f"layer.weight.{key}"] = value
        reference = "bitsandbytes.functional.dequantize_4bit"
        write(name, stored, {"layer.weight": found}, reference, config)

    four("bnb-nf4", (32, 64), "nf4")
    four("bnb-nf4-nested", (88, 192), "nf4", nested=True)
    four("bnb-fp4", (32, 64), "fp4")
    four("bnb-nf4-odd", (7, 31), "nf4")
    four("bnb-nf4-bf16-storage", (32, 64), "nf4", storage=BF16)
    weight = torch.randn((24, 64), generator=seed(91)).half()
    codes, absmax, _ = of.int8_vectorwise_quant(weight)
    found = of.int8_vectorwise_dequant(codes, absmax)
    model = {"layer.weight": codes, "layer.SCB": absmax}
    model["layer.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    reference = "bitsandbytes.functional.int8_vectorwise_dequant"
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    write("bnb-int8", model, {"layer.weight": found}, reference, config)


# gpt-oss.


@case
def gpt_oss():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scale = bytes_of((2, 24, 2, 16), 100), exponents((2, 24, 2), 101)
    bias = torch.randn((2, 24), generator=seed(102)).to(BF16)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    found = convert_moe_packed_tensors(blocks, scale)
    model = {f"{name}_blocks": blocks, f"{name}_scales": scale, f"{name}_bias": bias}
    expected = {name: found, f"{name}_bias": bias}
    reference = "transformers convert_moe_packed_tensors"
    write("gpt-oss-mxfp4", model, expected, reference, {"quant_method": "mxfp4"})
    name = "block.0.mlp.mlp1_weight"
    model = {f"{name}.blocks": blocks, f"{name}.scales": scale}
    expected = {name: found.transpose(1, 2)}
    write("gpt-oss-openai-names", model, expected, f"{reference}, transposed back")


# ModelOpt.


@case
def modelopt():
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    formula = "modelopt FP8QTensor: weight.to(float32) * weight_scale"
    weight, scale = codes8((24, 64), 110), torch.tensor(0.0371)
    model = {"layer.weight": weight, "layer.weight_scale": scale}
    model["layer.input_scale"] = torch.tensor(0.5)
    expected = {"layer.weight": weight.to(F32) * scale}
    write("modelopt-fp8", model, expected, formula, config)
    rows = scales((24,), 111)
    model = {"layer.weight": weight, "layer.weight_scale": rows}
    expected = {"layer.weight": weight.to(F32) * rows[:, None]}
    algo = {**config, "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
    write("modelopt-fp8-channel", model, expected, formula, algo)
    weight, blocks = codes8((200, 160), 112), scales((2, 1, 2, 1), 113)
    spread = blocks[:, 0, :, 0].repeat_interleave(128, 0).repeat_interleave(128, 1)[:200, :160]
    model = {"layer.weight": weight, "layer.weight_scale": blocks}
    expected = {"layer.weight": weight.to(F32) * spread}
    algo = {**config, "quant_algo": "FP8_PB_WO"}
    write("modelopt-fp8-pb-wo", model, expected, formula, algo)
    packed, scale = bytes_of((24, 48), 114), codes8((24, 6), 115).abs()
    second = torch.tensor(0.0022321429569274187)
    tensor = NVFP4QTensor(torch.Size((24, 96)), F32, packed)
    found = tensor.dequantize(dtype=F32, scale=scale, double_scale=second, block_sizes={-1: 16})
    model = {
        "layer.weight": packed,
        "layer.weight_scale": scale,
        "layer.weight_scale_2": second,
        "layer.input_scale": torch.tensor(0.5),
    }
    settings = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    reference = "modelopt NVFP4QTensor.dequantize"
    expected = {"layer.weight": found}
    write("modelopt-nvfp4", model, expected, reference, settings, None, "hf_quant_config.json")
    packed, scale = bytes_of((2, 24, 48), 116), codes8((2, 24, 6), 117).abs()
    second = torch.tensor([0.0021, 0.0032]).view(2, 1, 1)
    found = e2m1(packed) * (scale.to(F32) * second).repeat_interleave(16, -1)
    model = {"experts.gate_up_proj": packed, "experts.gate_up_proj_scale": scale}
    model["experts.gate_up_proj_scale_2"] = second
    algo = {**config, "quant_algo": "NVFP4"}
    expected = {"experts.gate_up_proj": found}
    write("modelopt-nvfp4-experts", model, expected, "e2m1 * (scale * scale_2)", algo)
    weight, scale = codes8((24, 96), 118), exponents((24, 3), 119)
    spread = scale.view(E8M0).to(F32).repeat_interleave(32, -1)
    model = {"layer.weight": weight, "layer.weight_scale": scale}
    expected = {"layer.weight": weight.to(F32) * spread}
    algo = {**config, "quant_algo": "MXFP8"}
    write("modelopt-mxfp8", model, expected, "weight * 2^(scale - 127)", algo)
    packed = bytes_of((24, 48), 120)
    model = {"layer.weight": packed, "layer.weight_scale": scale}
    expected = {"layer.weight": e2m1(packed) * spread}
    algo = {**config, "quant_algo": "MXFP4"}
    write("modelopt-mxfp4", model, expected, "e2m1 * 2^(scale - 127)", algo)


@case
def modelopt_int4():
    from modelopt.torch.export.quant_utils import pack_int4_in_uint8

    config = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    codes, scale = ints(-8, 8, (24, 64), 130), scales((24, 4), 131)
    spread = scale.repeat_interleave(16, -1)
    packed = pack_int4_in_uint8(codes.float() * spread, scale, 16)
    model = {"layer.weight": packed, "layer.weight_scale": scale}
    expected = {"layer.weight": codes.float() * spread}
    reference = "modelopt pack_int4_in_uint8, and code * scale"
    write("modelopt-w4a16", model, expected, reference, config)
    factors = scales((64,), 132) * 50
    model["layer.pre_quant_scale"] = factors
    expected = {"layer.weight": codes.float() * spread * factors}
    write("modelopt-w4a16-prequant", model, expected, reference, config)


# HQQ, MLX, torchao, Quanto.


@case
def hqq():
    from hqq.core.quantize import Quantizer

    for bits, axis in [(8, 1), (4, 1), (3, 1), (2, 1), (1, 1), (4, 0)]:
        weight = torch.randn((40, 96), generator=seed(140 + bits))
        packed, meta = Quantizer.quantize(
            weight,
            nbits=bits,
            channel_wise=True,
            group_size=32,
            optimize=False,
            round_zero=False,
            axis=axis,
            compute_dtype=F32,
            view_as_float=False,
            device="cpu",
        )
        found = Quantizer.dequantize(packed, meta)
        text = lambda value: torch.tensor(list(str(value).encode()), dtype=torch.uint8)
        model = {
            "layer.W_q": packed,
            "layer.scale": meta["scale"],
            "layer.zero": meta["zero"],
            "layer.nbits": torch.tensor(bits, dtype=torch.int32),
            "layer.group_size": torch.tensor(32, dtype=torch.int32),
            "layer.axis": torch.tensor(axis, dtype=torch.int32),
            "layer.shape": torch.tensor([40, 96]),
            "layer.packing": text(meta["packing"]),
            "layer.view_as_float": torch.tensor(False),
            "layer.compute_dtype": text("torch.float32"),
        }
        config = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": bits}}}
        name = f"hqq-{bits}bits" + ("-axis0" if axis == 0 else "")
        write(name, model, {"layer.weight": found}, "hqq Quantizer.dequantize", config)


@case
def mlx():
    import mlx.core as mx
    import numpy as np

    for bits in [1, 2, 3, 4, 5, 6, 8]:
        weight = torch.randn((24, 128), generator=seed(150 + bits)).numpy()
        packed, scale, bias = mx.quantize(mx.array(weight), group_size=64, bits=bits)
        found = mx.dequantize(packed, scale, bias, group_size=64, bits=bits)
        tensor = lambda array: torch.from_numpy(np.array(array))
        model = {
            "layer.weight": tensor(packed),
            "layer.scales": tensor(scale),
            "layer.biases": tensor(bias),
        }
        name = f"mlx-{bits}bits"
        write(name, model, {"layer.weight": tensor(found)}, "mlx.core.dequantize")
        settings(name, {"quantization": {"group_size": 64, "bits": bits, "mode": "affine"}})


@case
def mlx_floats():
    import mlx.core as mx
    import numpy as np

    for mode, bits, group, scale in [
        ("mxfp4", 4, 32, exponents((24, 4), 191)),
        ("mxfp8", 8, 32, exponents((24, 4), 192)),
        ("nvfp4", 4, 16, codes8((24, 8), 193).abs().view(torch.uint8)),
    ]:
        codes = codes8((24, 128), 194).view(torch.uint8) if bits == 8 else bytes_of((24, 64), 195)
        words = codes.view(torch.uint32)
        arrays = [mx.array(tensor.numpy()) for tensor in (words, scale)]
        found = mx.dequantize(*arrays, mode=mode, dtype=mx.float32)
        model = {"layer.weight": words, "layer.scales": scale}
        expected = {"layer.weight": torch.from_numpy(np.array(found))}
        name = f"mlx-{mode}"
        write(name, model, expected, "mlx.core.dequantize")
        # As mlx-lm writes them: the mode of a layer comes before the mode of all.
        own = {"group_size": group, "bits": bits, "mode": mode}
        config = {"group_size": 64, "bits": 4, "mode": "affine", "layer": own}
        settings(name, {"quantization": config, "quantization_config": config})


@case
def metal():
    from transformers.integrations.metal_quantization import _affine_dequantize_tensor

    words = ints(0, 2**32, (24, 12), 196, torch.int64).to(torch.uint32)
    scale, bias = scales((24, 3), 197), scales((24, 3), 198) - 0.01
    found = _affine_dequantize_tensor(words, scale, bias, 32, 4)
    model = {"layer.weight": words, "layer.scales": scale, "layer.qbiases": bias}
    config = {"quant_method": "metal", "bits": 4, "group_size": 32}
    reference = "transformers _affine_dequantize_tensor"
    write("metal-4bits", model, {"layer.weight": found}, reference, config)


@case
def torchao():
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    for name, kind in [
        ("torchao-float8", Float8WeightOnlyConfig()),
        ("torchao-int8", Int8WeightOnlyConfig(version=2)),
        (
            "torchao-intx",
            IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), version=2),
        ),
    ]:
        layer = torch.nn.Linear(64, 24, bias=False)
        layer.weight.data = torch.randn((24, 64), generator=seed(160))
        model = torch.nn.ModuleDict({"layer": layer})
        quantize_(model, kind)
        state = {"layer.weight": model["layer"].weight.data, "norm.weight": NORM}
        tensors, metadata = flatten_tensor_state_dict(state)
        found = model["layer"].weight.dequantize().detach()
        config = {"quant_method": "torchao"}
        reference = f"torchao {type(state['layer.weight']).__name__}.dequantize"
        write(name, tensors, {"layer.weight": found}, reference, config, metadata)


@case
def quanto():
    formula = "optimum-quanto: _scale * _data"
    for name, data in [
        ("quanto-qint8", ints(-128, 128, (24, 64), 170, torch.int8)),
        ("quanto-qfloat8", codes8((24, 64), 171)),
    ]:
        scale = scales((24, 1), 172)
        model = {
            "layer.weight._data": data,
            "layer.weight._scale": scale,
            "layer.input_scale": torch.tensor(1.0),
            "layer.output_scale": torch.tensor(1.0),
        }
        expected = {"layer.weight": scale * data.to(F32)}
        write(name, model, expected, formula, {"quant_method": "quanto"})


@case
def quanto_bits():
    from optimum.quanto import MaxOptimizer, freeze, qint2, qint4, quantization_map, quantize
    from optimum.quanto.tensor.weights.qbits import WeightQBitsTensor

    reference = "optimum-quanto WeightQBitsTensor.dequantize"
    dims = {"hidden_size": 320, "intermediate_size": 192}

    def saved(name, kind, module, rows, columns, bias=False, config=None):
        """Quantises a layer as the library does, and saves the same tensors."""
        layer = torch.nn.Linear(columns, rows, bias=bias)
        layer.weight.data = torch.randn((rows, columns), generator=seed(173))
        if bias:
            layer.bias.data = torch.randn((rows,), generator=seed(174))
        model = torch.nn.ModuleDict({"layer": layer})
        quantize(model, weights=kind)
        freeze(model)
        named = lambda key: key.replace("layer", module)
        found = {named("layer.weight"): model["layer"].weight.dequantize()}
        if bias:
            found[named("layer.bias")] = model["layer"].bias.data
        tensors = {named(key): value for key, value in model.state_dict().items()}
        write(name, tensors, found, reference)
        kinds = {named(key): value for key, value in quantization_map(model).items()}
        settings(name, kinds, "quanto_qmap.json")
        if config:
            settings(name, config)

    saved("quanto-qint4", qint4, "layer", 24, 256, bias=True)
    saved("quanto-qint2", qint2, "model.layers.0.mlp.down_proj", 24, 192, config=dims)
    saved("quanto-qint4-without-groups", qint4, "layer", 24, 60)
    saved("quanto-qint2-padded", qint2, "model.layers.0.self_attn.q_proj", 5, 320, config=dims)
    base = torch.randn((24, 256), generator=seed(175))
    scale, shift = MaxOptimizer()(base, qint4, 0, 128, zeropoint=True)
    weight = WeightQBitsTensor.quantize(base, qint4, 0, 128, scale, shift, optimized=False)
    tensors = {}
    weight.save_to_state_dict(tensors, "lm_head.weight.", False)
    expected = {"lm_head.weight": weight.dequantize()}
    write("quanto-qint4-zero-points", tensors, expected, reference, {"quant_method": "quanto"})
    config = {"text_config": {"hidden_size": 256}, "quantization_config": {"quant_method": "quanto"}}
    settings("quanto-qint4-zero-points", config)


# Gemma, Quark, MXFP8.


@case
def gemma():
    from transformers.integrations.gemma_quant import QuantizedEmbedding, QuantizedLinear

    reference = "transformers QuantizedLinear, QuantizedEmbedding._dequantize_weights"
    config = {"quant_method": "gemma", "num_bits": 4, "quantize_embeddings": True}
    patterns = {r"layers\.\d+\.mlp\.": {"num_bits": 2}, "lm_head$": {"num_bits": 8}}
    config["module_quant_configs"] = {**patterns, "embed_tokens": {"num_bits": 2}}
    model, expected = {}, {}
    for at, (name, bits) in enumerate(
        [("layers.0.self_attn.q_proj", 4), ("layers.0.mlp.up_proj", 2), ("lm_head", 8)]
    ):
        layer = QuantizedLinear(64, 24, num_bits=bits)
        packed = bytes_of((24, 64 * bits // 8), 200 + at)
        layer.weight.data = packed.view(torch.int8) if bits == 8 else packed
        layer.weight_scale.data = scales((24, 1), 203 + at)
        model |= {f"{name}.{key}": tensor for key, tensor in layer.state_dict().items()}
        expected[f"{name}.weight"] = layer._dequantize_weights()
    embedding = QuantizedEmbedding(40, 64, F32, num_bits=2)
    embedding.embedding_quantized.data = bytes_of((40, 16), 206)
    embedding.embedding_scale.data = scales((40, 1), 207)
    model |= {f"embed_tokens.{key}": tensor for key, tensor in embedding.state_dict().items()}
    expected["embed_tokens.weight"] = embedding.weight
    write("gemma-mixed", model, expected, reference, config)


@case
def quark():
    from quark.torch.utils.pack import Pack_fp4

    config = {"quant_method": "quark", "export": {"pack_method": "reorder"}}
    packed, scale = bytes_of((24, 48), 210), exponents((24, 3), 211)
    codes = Pack_fp4("per_group", "fp4").unpack(packed, True)
    found = codes * scale.view(E8M0).to(F32).repeat_interleave(32, -1)
    model = {"layer.weight": packed, "layer.weight_scale": scale}
    reference = "quark Pack_fp4.unpack, times 2^(scale - 127)"
    write("quark-mxfp4", model, {"layer.weight": found}, reference, config)
    weight, scale = codes8((24, 64), 212), torch.tensor(0.0371)
    model = {"layer.weight": weight, "layer.weight_scale": scale}
    model["layer.input_scale"] = torch.tensor(0.5)
    expected = {"layer.weight": weight.to(F32) * scale}
    write("quark-fp8", model, expected, "weight.to(float32) * weight_scale", config)


@case
def mxfp8():
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    config = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
    weight, scale = codes8((24, 96), 213), exponents((24, 3), 214)
    found = Fp8Dequantize(None)._dequantize_one(weight, scale, F32)
    model = {"layer.weight": weight, "layer.weight_scale_inv": scale}
    reference = "transformers Fp8Dequantize"
    write("mxfp8-u8", model, {"layer.weight": found}, reference, config)


# ComfyUI.


@case
def comfy():
    from comfy_kitchen.tensor import TensorCoreMXFP8Layout, TensorCoreNVFP4Layout

    formula = "comfy: weight.to(float32) * scale"
    mark = lambda form: torch.tensor(list(json.dumps({"format": form}).encode()), dtype=torch.uint8)
    weight, scale = codes8((24, 64), 180), torch.tensor(0.0271)
    expected = {"layer.weight": weight.to(F32) * scale}
    model = {
        "scaled_fp8": torch.empty(0, dtype=F8),
        "layer.weight": weight,
        "layer.scale_weight": scale,
        "layer.scale_input": torch.tensor(0.5),
    }
    write("comfy-old-fp8", model, expected, formula)
    model = {"layer.weight": weight, "layer.weight_scale": scale}
    marked = {**model, "layer.comfy_quant": mark("float8_e4m3fn")}
    write("comfy-fp8", marked, expected, formula)
    layers = {"format_version": "1.0", "layers": {"layer": {"format": "float8_e4m3fn"}}}
    metadata = {"_quantization_metadata": json.dumps(layers)}
    write("comfy-fp8-metadata", model, expected, formula, None, metadata)
    weight, rows = ints(-128, 128, (24, 64), 181, torch.int8), scales((24, 1), 182)
    model = {"layer.weight": weight, "layer.weight_scale": rows}
    model["layer.comfy_quant"] = mark("int8_tensorwise")
    expected = {"layer.weight": weight.to(F32) * rows}
    write("comfy-int8", model, expected, formula)
    for name, layout, shape in [
        ("comfy-nvfp4", TensorCoreNVFP4Layout, (144, 160)),
        ("comfy-mxfp8", TensorCoreMXFP8Layout, (160, 160)),
    ]:
        data, params = layout.quantize(torch.randn(shape, generator=seed(183)))
        found = layout.dequantize(data, params)
        model = {"layer.weight": data, "layer.comfy_quant": mark(name[6:])}
        if name == "comfy-nvfp4":
            model["layer.weight_scale"] = params.block_scale
            model["layer.weight_scale_2"] = params.scale
        else:
            model["layer.weight_scale"] = params.scale
        reference = f"comfy_kitchen {layout.__name__}.dequantize"
        write(name, model, {"layer.weight": found}, reference)


# Weights that are quantised.


@case
def quantize():
    """Writes a weight, and compressed-tensors' result by each scheme."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight = torch.randn((136, 160), generator=seed(190)) * 0.05
    weight[3] = 0.0
    weight[5, 7], weight[6, 32:64] = 3.0, 0.0
    weight[7] = weight[7] * 1e-38
    weight[130:, 130:] = 0.0
    # Numbers halfway between two codes.
    weight[9] = torch.linspace(-6.0, 6.0, 160 + 1)[1:]
    tensors = {"weight": weight}
    for name, preset, form, cells in [
        ("fp8-block128", "FP8_BLOCK", "float-quantized", (128, 128)),
        ("fp8-channel", "FP8_DYNAMIC", "float-quantized", (1, 160)),
        ("fp8-tensor", "FP8", "float-quantized", (136, 160)),
        ("int8-channel", "INT8", "int-quantized", (1, 160)),
        ("nvfp4", "NVFP4A16", "nvfp4-pack-quantized", (1, 16)),
        ("mxfp4", "MXFP4A16", "mxfp4-pack-quantized", (1, 32)),
    ]:
        scheme = preset_name_to_scheme(preset, ["Linear"])
        height, width = cells
        pad = (0, -160 % width, 0, -136 % height)
        padded = torch.nn.functional.pad(weight, pad)
        rows, columns = padded.shape[0] // height, padded.shape[1] // width
        grouped = padded.view(rows, height, columns, width).transpose(1, 2).flatten(2)
        low, high = grouped.amin(-1), grouped.amax(-1)
        state, extra = {"weight": weight}, {}
        if name == "nvfp4":
            extra["global_scale"] = generate_gparam(weight.amin(), weight.amax())
            state["weight_global_scale"] = extra["global_scale"]
        scale, _ = calculate_qparams(low, high, scheme.weights, **extra)
        state["weight_scale"] = scale.reshape(1) if name == "fp8-tensor" else scale
        found = BaseCompressor.get_value_from_registry(form).compress(state, scheme)
        for key, tensor in found.items():
            key = "weight_scale_inv" if name == "fp8-block128" and key != "weight" else key
            tensors[f"{name}/{key}"] = tensor.contiguous()
    save_file(tensors, OUT.parent / "quantize.safetensors", {"reference": "compressed_tensors"})
    print({name: str(t.dtype)[6:] + str(list(t.shape)) for name, t in tensors.items()})


if __name__ == "__main__":
    failed = []
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name]()
        except Exception as error:
            failed.append(name)
            print("FAILED", name, type(error).__name__, re.sub(r"\s+", " ", str(error))[:300])
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
