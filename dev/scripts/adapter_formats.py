#!/usr/bin/env python3
"""Loads adapters that the command converts with the libraries of their trainers.

PEFT and diffusers make tiny adapters with random values. `convert --lora-format` writes them in
each format, and PEFT, diffusers, LyCORIS and mlx-lm load the results: the outputs of the model must
be those with the first adapter. `convert --lora` must merge each file as PEFT does. More kinds of
merges are in the fixtures of lora_fixtures.py.

    python dev/scripts/adapter_formats.py target/debug/safetensors

Needs, from PyPI: torch 2.15, peft 0.21, transformers 5.24, diffusers 0.42, lycoris-lora 4.1,
mlx[cpu] and mlx-lm 0.32.
"""

import copy
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from diffusers import DiffusionPipeline, UNet2DConditionModel
from diffusers.loaders import StableDiffusionLoraLoaderMixin
from lycoris import create_lycoris_from_weights
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaForCausalLM
from transformers import PhiConfig, PhiForCausalLM
from transformers.integrations import peft as integration

COMMAND = sys.argv[1]
TOKENS = torch.tensor([[1, 5, 2, 30]])
# transformers 5.24 asks for a version of PEFT that was not released then.
integration.MIN_PEFT_VERSION = "0.21.0"


def convert(*arguments):
    command = [COMMAND, "convert", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{arguments}: {done.stderr}")


def compare(what, found, expected, base):
    scale = expected.abs().max().item()
    difference = (found - expected).abs().max().item() / scale
    effect = (base - expected).abs().max().item() / scale
    assert difference < 1e-4 < effect, f"{what}: {difference:.1e} apart, of {effect:.1e}"
    print(f"{what}: {difference:.0e} of {effect:.0e}")


def random(model):
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
            if "magnitude" in name:
                parameter.data = parameter.abs() + 0.5


@torch.no_grad()
def logits(model):
    return model.eval()(TOKENS).logits


def mlx_logits(model, adapter):
    import mlx.core as mx
    import numpy
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    loaded = load_adapters(load_model(model)[0], str(adapter))
    return torch.from_numpy(numpy.array(loaded(mx.array(TOKENS.numpy()))))


def language(folder, name, base, formats, **settings):
    """An adapter of PEFT in other formats, and each of them in PEFT's again."""
    model, first = folder / "model", folder / "first"
    torch.manual_seed(0)
    base.save_pretrained(model)
    fresh = lambda: type(base).from_pretrained(model)
    adapted = get_peft_model(fresh(), LoraConfig(**settings))
    random(adapted)
    adapted.save_pretrained(first)
    plain, expected = logits(base), logits(adapted)
    check = lambda what, found: compare(f"{name}, {what}", found, expected, plain)

    def check_peft(what, adapter):
        check(f"{what} by PEFT", logits(PeftModel.from_pretrained(fresh(), adapter)))

    def check_merge(what, adapter):
        convert(model, folder / "merged", "--lora", adapter, "--force")
        check(f"{what} by --lora", logits(type(base).from_pretrained(folder / "merged")))

    check("merged by PEFT", logits(copy.deepcopy(adapted).merge_and_unload()))
    check_merge("PEFT", first)
    for other in formats:
        file = folder / (f"{other}.safetensors" if other == "kohya" else other)
        convert(first, file, "--lora-format", other)
        check_merge(other, file)
        if other == "kohya":
            network, _ = create_lycoris_from_weights(1.0, str(file), target := fresh())
            assert network.loras
            network.apply_to()
            check("kohya by LyCORIS", logits(target))
        if other == "mlx":
            check("mlx by mlx-lm", mlx_logits(model, file))
        convert(file, folder / f"{other}-peft", "--lora-format", "peft", "--lora-base", model)
        check_peft(f"{other} and back", folder / f"{other}-peft")


class Pipeline(DiffusionPipeline, StableDiffusionLoraLoaderMixin):
    def __init__(self, unet, text_encoder):
        super().__init__()
        self.register_modules(unet=unet, text_encoder=text_encoder)

    @torch.no_grad()
    def outputs(self):
        text = self.text_encoder.eval()(TOKENS).last_hidden_state
        image = torch.linspace(-1, 1, 4 * 64).reshape(1, 4, 8, 8)
        return torch.cat([text.flatten(), self.unet.eval()(image, 3, text).sample.flatten()])


def pipeline(folder):
    """A file of diffusers with a UNet and a text encoder as kohya's, and the reverse."""
    torch.manual_seed(1)
    sizes = {"block_out_channels": (8, 16), "cross_attention_dim": 16, "norm_num_groups": 4}
    blocks = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
    blocks["up_block_types"] = ("UpBlock2D", "CrossAttnUpBlock2D")
    unet = UNet2DConditionModel(8, attention_head_dim=4, layers_per_block=1, **sizes, **blocks)
    text = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": 1}
    encoder = CLIPTextModel(CLIPTextConfig(vocab_size=40, num_hidden_layers=2, **text, **tokens))
    fresh = lambda: Pipeline(copy.deepcopy(unet), copy.deepcopy(encoder))
    adapted = fresh()
    attention = ["to_q", "to_k", "to_v", "to_out.0"]
    unet_config = LoraConfig(r=3, lora_alpha=5, target_modules=attention + ["conv1"])
    # All that kohya's scripts train: diffusers knows their names only together.
    layers = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
    text_config = LoraConfig(r=2, lora_alpha=6, target_modules=layers)
    adapted.unet.add_adapter(unet_config)
    adapted.text_encoder.add_adapter(text_config)
    random(adapted.unet)
    random(adapted.text_encoder)
    adapted.save_lora_weights(
        folder / "first",
        get_peft_model_state_dict(adapted.unet),
        get_peft_model_state_dict(adapted.text_encoder),
        unet_lora_adapter_metadata=unet_config.to_dict(),
        text_encoder_lora_adapter_metadata=text_config.to_dict(),
    )
    first = folder / "first/pytorch_lora_weights.safetensors"
    plain, expected = fresh().outputs(), adapted.outputs()
    unet.save_pretrained(folder / "unet")
    encoder.save_pretrained(folder / "text_encoder")

    def check(what, file):
        loaded = fresh()
        loaded.load_lora_weights(str(file.parent), weight_name=file.name)
        compare(f"pipeline, {what} by diffusers", loaded.outputs(), expected, plain)
        for part in ["unet", "text_encoder"]:
            merged = folder / f"merged-{part}"
            convert(folder / part, merged, "--lora", file, "--force")
            setattr(loaded, part, getattr(loaded, part).from_pretrained(merged))
        compare(f"pipeline, {what} by --lora", loaded.outputs(), expected, plain)

    check("diffusers", first)
    kohya, back = folder / "kohya.safetensors", folder / "back.safetensors"
    convert(first, kohya, "--lora-format", "kohya")
    check("kohya", kohya)
    # The names of both models, in one checkpoint.
    names = folder / "both.safetensors"
    convert(folder / "unet", folder / "text_encoder", names)
    convert(kohya, back, "--lora-format", "diffusers", "--lora-base", names)
    check("kohya and back", back)


def main():
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    llama = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes))
    linear = {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    ranks = {"rank_pattern": {"q_proj": 2}, "use_rslora": True, **linear}
    bias = {"lora_bias": True, "target_modules": ["fc1"]}
    cases = [
        ("linear", llama, ["peft", "mlx", "kohya"], linear),
        ("dora", llama, ["peft", "mlx"], {"use_dora": True, **linear}),
        ("rslora", llama, ["peft", "kohya"], ranks),
        ("embedding", llama, ["peft"], {"r": 2, "target_modules": ["embed_tokens", "lm_head"]}),
        ("bias", PhiForCausalLM(PhiConfig(**sizes)), ["peft"], bias),
    ]
    for name, base, formats, settings in cases:
        with tempfile.TemporaryDirectory() as folder:
            language(Path(folder), name, base, formats, **settings)
    with tempfile.TemporaryDirectory() as folder:
        pipeline(Path(folder))


main()
