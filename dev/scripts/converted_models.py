"""Loads the directories that `safetensors convert` writes with transformers, PEFT and vLLM.

A small Llama with a tokenizer, and an adapter for it, are saved by transformers and PEFT. The command
casts, reshards, quantises and merges their directories, and divides them among ranks. Each result
must load with `from_pretrained` alone, with the dtype of its weights where `dtype="auto"` asks for
that, with the same tokenizer, and with the same numbers. An adapter must load as an adapter.

vLLM is not imported, because it needs a GPU or a build of its own. What its default loader asks of a
directory is written out here: patterns of files in their order, the index that filters them, no
tensor twice, and the settings and the tokenizer that it reads by transformers.

Run with: python dev/scripts/converted_models.py target/debug/safetensors

Needs, from PyPI: torch 2.15, transformers 5.24, peft 0.21.2, safetensors, accelerate. Without torch,
it checks settings, tokenizers and files, says what it skips, and exits with 3.
"""

import fnmatch
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import transformers
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

try:
    import torch
except ImportError:
    torch = None

COMMAND = sys.argv[1]
TEXT = "the cat sat"
SKIPPED = []


def convert(*args):
    """Runs the command, which must give no warning."""
    run = subprocess.run([COMMAND, "convert", *map(str, args)], capture_output=True, text=True)
    assert run.returncode == 0 and not run.stderr, f"{args}: {run.stderr}"
    print(run.stdout, end="")


def save_model(folder):
    """Saves a model as a user has it, with files that do not belong to it."""
    words = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *TEXT.split()])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=len(words), tie_word_embeddings=False, dtype="float32",
        architectures=["LlamaForCausalLM"],
    )
    if torch:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
        model.generation_config = GenerationConfig(max_new_tokens=7)
        model.save_pretrained(folder)
    else:
        import numpy
        from safetensors.numpy import save_file

        config.save_pretrained(folder)
        GenerationConfig(max_new_tokens=7).save_pretrained(folder)
        shapes = {"lm_head.weight": (6, 64), "model.layers.0.self_attn.q_proj.weight": (64, 64)}
        weights = {name: numpy.ones(shape, "f4") for name, shape in shapes.items()}
        save_file(weights, folder / "model.safetensors")
    (folder / "LICENSE").write_text("free")
    (folder / "optimizer.pt").write_bytes(b"of a training")


def files_of_vllm(folder):
    """The files of tensors that vLLM reads, as its default loader chooses them."""
    names = [path.name for path in folder.iterdir()]
    found = []
    for pattern in ["*.safetensors", "*.bin", "*.pt"]:
        found = sorted(fnmatch.filter(names, pattern))
        if found:
            break
    assert pattern == "*.safetensors", f"{folder}: vLLM takes {pattern}"
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = set(json.loads(index.read_text())["weight_map"].values())
        found = [name for name in found if name in named]
        assert named == set(found), f"{folder}: {named} are not all there"
    return [folder / name for name in found]


def check_files(folder, dtype):
    """What every loader asks of a directory: settings, a tokenizer, files of the dtype."""
    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == dtype, f"{folder}: {config['dtype']}"
    assert AutoConfig.from_pretrained(folder).architectures == ["LlamaForCausalLM"]
    assert GenerationConfig.from_pretrained(folder).max_new_tokens == 7
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(TEXT)["input_ids"] == [3, 4, 5], tokenizer(TEXT)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"
    assert (folder / "LICENSE").read_text() == "free"
    assert not (folder / "optimizer.pt").exists()
    names = set()
    for path in files_of_vllm(folder):
        with safe_open(path, "np") as file:
            assert names.isdisjoint(file.keys()), f"{folder}: a tensor is in two files"
            names |= set(file.keys())
    return names


def load(folder):
    """The model, in the dtype that its settings and files say. No tensor may be missing or left."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    assert not any(info.values()), f"{folder}: {info}"
    return model


def check_model(folder, dtype, expected=None, rtol=0.0):
    """Loads a directory, and compares its logits."""
    check_files(folder, dtype)
    if torch is None:
        return SKIPPED.append(f"{folder.name} with transformers")
    model = load(folder)
    assert str(model.dtype) == f"torch.{dtype}", f"{folder}: loaded as {model.dtype}"
    logits = model(torch.tensor([[3, 4, 5]])).logits.float()
    if expected is not None:
        torch.testing.assert_close(logits, expected, rtol=rtol, atol=rtol)
    return logits


def check_adapter(folder, model):
    """An adapter that is converted stays one, and merged it gives the same numbers."""
    if torch is None:
        return SKIPPED.append("adapters with PEFT")
    from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model

    base = load(model)
    modules = ["q_proj", "v_proj"]
    config = LoraConfig(r=2, lora_alpha=4, target_modules=modules, init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(folder / "adapter")
    convert(folder / "adapter", folder / "adapter-f16", "--dtype", "f16")
    names = {path.name for path in (folder / "adapter-f16").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= names, names
    ids = torch.tensor([[3, 4, 5]])
    logits = []
    for name, dtype in [("adapter", "float32"), ("adapter-f16", "float16")]:
        adapted = PeftModel.from_pretrained(load(model), folder / name)
        logits.append(adapted(ids).logits.float())
        with safe_open(folder / name / "adapter_model.safetensors", "pt") as file:
            assert {str(file.get_tensor(it).dtype) for it in file.keys()} == {f"torch.{dtype}"}
    torch.testing.assert_close(logits[1], logits[0], rtol=0.02, atol=0.02)
    # The base is found by its name in the adapter's settings.
    AutoPeftModelForCausalLM.from_pretrained(folder / "adapter-f16")
    convert(model, folder / "merged", "--lora", folder / "adapter")
    check_model(folder / "merged", "float32", logits[0], 1e-5)
    convert(model, folder / "merged-bf16", "--lora", folder / "adapter", "--dtype", "bf16")
    check_model(folder / "merged-bf16", "bfloat16", logits[0], 0.1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = folder / "model"
        save_model(model)
        (model / "optimizer.pt").rename(folder / "optimizer.pt")
        logits = check_model(model, "float32")
        (folder / "optimizer.pt").rename(model / "optimizer.pt")
        for out, dtype, rtol, options in [
            ("same", "float32", 0, []),
            ("shards", "float32", 0, ["--max-shard-size", "20KB"]),
            ("bf16", "bfloat16", 0.1, ["--dtype", "bf16"]),
            ("f16", "float16", 0.02, ["--dtype", "f16", "--max-shard-size", "20KB"]),
        ]:
            convert(model, folder / out, *options)
            check_model(folder / out, dtype, logits, rtol)
        convert(model, folder / "ranks", "--ranks", "2")
        convert(folder / "ranks", folder / "whole")
        check_model(folder / "whole", "float32", logits)
        convert(folder / "bf16", folder / "bf16", "--dtype", "f32")
        check_model(folder / "bf16", "float32", logits, 0.1)
        for scheme in ["fp8-block128", "fp8-channel"] if torch else []:
            convert(model, folder / scheme, "--quantize", scheme)
            check_files(folder / scheme, "float32")
            convert(folder / scheme, folder / f"{scheme}-bf16", "--dtype", "bf16")
            check_model(folder / f"{scheme}-bf16", "bfloat16", logits, 0.3)
        check_adapter(folder, model)
    if SKIPPED:
        print("SKIPPED, BECAUSE torch IS NOT INSTALLED:", ", ".join(SKIPPED))
        sys.exit(3)
    print("all loaded")


main()
