#!/usr/bin/env python3
"""Compares the GGUF files that the command writes with the Python package `gguf` and llama.cpp.

Run by hand, as CI has no Python:

    python3 -m venv venv
    venv/bin/pip install torch numpy gguf transformers tokenizers safetensors sentencepiece
    venv/bin/python dev/scripts/gguf_interop.py target/debug/safetensors [LLAMA_CPP]

It makes a tiny model of each architecture with random weights, converts it to each type, and reads
the file with `gguf`: every tensor must have the bits that `gguf.quants.quantize` makes. LLAMA_CPP is
a copy of the repository of llama.cpp. With it, its converter writes the same model, and metadata and
tensors are compared with ours. Only the check of its tokenizer by a hash is replaced, because tiny
vocabularies have other hashes.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = Path(sys.argv[1]).resolve()
LLAMA_CPP = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
if LLAMA_CPP:
    # Its converter needs its own version of the package.
    sys.path[:0] = [str(LLAMA_CPP / "gguf-py"), str(LLAMA_CPP)]

import gguf
import numpy as np
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0"]
Q = gguf.GGMLQuantizationType

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SIZES = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)
ROPE3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)

# Name: class, differences from SIZES, and the pre-tokenizer, if it has a tokenizer.
MODELS = {
    "llama": (tf.LlamaForCausalLM, dict(rope_parameters=dict(rope_theta=5e5, **ROPE3)), "llama-bpe"),
    "llama-bias": (tf.LlamaForCausalLM, dict(attention_bias=True, mlp_bias=True, head_dim=32), None),
    "llama-uneven": (tf.LlamaForCausalLM, dict(intermediate_size=80), None),
    "llama-tied": (tf.LlamaForCausalLM, dict(tie_word_embeddings=True), None),
    "mistral": (tf.MistralForCausalLM, dict(sliding_window=None, head_dim=32), "llama-bpe"),
    "qwen2": (tf.Qwen2ForCausalLM, dict(rope_parameters=dict(rope_theta=1e6, **YARN)), "qwen2"),
    "qwen3": (tf.Qwen3ForCausalLM, dict(head_dim=32, tie_word_embeddings=True), "qwen2"),
    "gemma": (tf.GemmaForCausalLM, dict(head_dim=32), None),
    "gemma2": (tf.Gemma2ForCausalLM, dict(head_dim=32, query_pre_attn_scalar=32), None),
    "gemma3": (tf.Gemma3ForCausalLM, dict(head_dim=32, query_pre_attn_scalar=32), None),
    "bert": (tf.BertModel, dict(num_key_value_heads=None, intermediate_size=128), None),
}


def make_tokenizer(folder, pre):
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    regex = Regex(QWEN2 if pre == "qwen2" else LLAMA3)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(regex, "isolated", False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    # The last is added by the class of Qwen2's tokenizer if it is not there.
    special = ["<|begin|>", "<|end|>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([__doc__] * 3, trainer)
    if pre == "llama-bpe":
        begin = tokenizer.token_to_id("<|begin|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B:1",
                                          special_tokens=[("<|begin|>", begin)])])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_tokens(["<tool>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>",
        "eos_token": "<|end|>", "chat_template": "{{ messages }}"}))


def make_model(folder, name, dtype=torch.bfloat16):
    cls, changes, pre = MODELS[name]
    config = cls.config_class(**{k: v for k, v in {**SIZES, **changes}.items() if v is not None
                                 or k == "sliding_window"})
    torch.manual_seed(len(name))
    model = cls(config)
    for key, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.to(dtype).save_pretrained(folder)
    if pre:
        make_tokenizer(folder, pre)
    return pre


def convert(folder, kind, *options):
    out = folder.parent / f"{folder.name}-{kind}.gguf"
    done = subprocess.run([COMMAND, "convert", folder, out, "--quantize", kind, "--force", *options],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return gguf.GGUFReader(out), done.stdout


def target_names(name):
    arch = {"llama-bias": "llama", "llama-uneven": "llama", "llama-tied": "llama",
            "mistral": "llama"}.get(name, name)
    return gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), 2), arch


def expected_tensors(folder, name):
    """The numbers of each tensor, by its name in GGUF."""
    names, arch = target_names(name)
    config = json.loads((folder / "config.json").read_text())
    out = {}
    for key, value in load_file(folder / "model.safetensors").items():
        if key.startswith("pooler.") or key == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        value = value.float().numpy()
        if arch == "llama" and (found := re.search(r"\.([qk])_proj\.", key)):
            heads = config["num_attention_heads" if found[1] == "q" else "num_key_value_heads"]
            shape = value.shape
            value = value.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
            value = value.swapaxes(1, 2).reshape(shape)
        if arch.startswith("gemma") and key.endswith("norm.weight"):
            value = value + np.float32(1)
        out[names.get_name(key, try_suffixes=(".weight", ".bias"))] = value
    return out


def type_of(name, value, kind):
    if value.ndim < 2 or name in ("position_embd.weight", "token_types.weight"):
        return Q.F32
    wanted = Q[kind.upper()]
    return wanted if value.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0 else Q.F16


def check_bits(folder, name, kind, reader):
    expected = expected_tensors(folder, name)
    read = {tensor.name: tensor for tensor in reader.tensors}
    factors = read.pop("rope_freqs.weight", None)
    assert (factors is not None) == (name == "llama"), name
    assert read.keys() == expected.keys(), read.keys() ^ expected.keys()
    for key, value in expected.items():
        wanted = type_of(key, value, kind)
        assert read[key].tensor_type == wanted, (key, read[key].tensor_type, wanted)
        assert list(read[key].shape) == list(value.shape[::-1]), key
        bits = gguf.quants.quantize(value, wanted)
        assert read[key].data.tobytes() == bits.tobytes(), f"{name} {kind}: {key} differs"
    return len(read)


def fields_of(reader):
    return {key: field.contents() for key, field in reader.fields.items()
            if not key.startswith("GGUF.")}


def check_converter(folder, name, kind, pre, ours):
    """Compares with the file of llama.cpp's converter."""
    out = folder.parent / f"{folder.name}-theirs.gguf"
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
    known = base.ModelBase.from_model_architecture(MODELS[name][0].__name__)
    without = dict(model_arch=known.model_arch, set_vocab=lambda self: self._set_vocab_none())
    cls = known if pre else type(known.__name__, (known,), without)
    if name == "gemma3":
        # It drops the rows of the embedding that have no token here.
        vocabulary = {str(i): i for i in range(SIZES["vocab_size"])}
        tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": []}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with torch.inference_mode():
        ftype = getattr(gguf.LlamaFileType, "ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}")
        cls(folder, ftype, out).write()
    theirs = gguf.GGUFReader(out)
    a, b = fields_of(ours), fields_of(theirs)
    differences = [f"{key}: {str(a.get(key))[:60]} | {str(b.get(key))[:60]}"
                   for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
    mine = {tensor.name: tensor for tensor in ours.tensors}
    other = {tensor.name: tensor for tensor in theirs.tensors}
    assert mine.keys() == other.keys(), mine.keys() ^ other.keys()
    for key in mine:
        assert mine[key].tensor_type == other[key].tensor_type, key
        if key == "rope_freqs.weight":
            assert np.allclose(mine[key].data, other[key].data, rtol=1e-5), key
        else:
            assert mine[key].data.tobytes() == other[key].data.tobytes(), f"{name} {kind}: {key}"
    return differences


def check_edges(folder):
    """Numbers at the edges of the quantisers: ties, zeros of both signs, very small scales."""
    rng = np.random.default_rng(1)
    rows = [np.zeros(64), -np.zeros(64), np.full(64, 1e-44), np.full(64, -3e-39), np.full(64, 65504.0),
            np.arange(-32, 32), np.arange(-32, 32) / 2, np.tile([127, 0.5, -0.5, 63.5], 16),
            np.tile([-8, 8, 7.5, 0.5], 16)]
    rows += [rng.standard_normal(64) * 10.0 ** exponent for exponent in range(-40, 6)]
    rows += [np.round(rng.standard_normal(64) * 8) / 2 for _ in range(200)]
    edges = np.zeros((320, 64), dtype=np.float32)
    edges[:len(rows)] = np.array(rows).astype(np.float32)
    tensors = load_file(folder / "model.safetensors")
    tensors = {key: value.float() for key, value in tensors.items()}
    tensors["model.embed_tokens.weight"] = torch.from_numpy(edges)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    for kind in ["q8_0", "q4_0"]:
        reader, _ = convert(folder, kind)
        check_bits(folder, "llama", kind, reader)
    for wrong in [np.nan, np.inf, -np.inf, 3e38]:
        edges[5, 7] = wrong
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        for kind in ["q8_0", "q4_0"]:
            done = subprocess.run([COMMAND, "convert", folder, folder / "x.gguf", "--quantize", kind],
                                  capture_output=True, text=True)
            assert done.returncode == 1 and "embed_tokens" in done.stderr, done.stderr
            assert not (folder / "x.gguf").exists()


def main():
    with tempfile.TemporaryDirectory() as temporary:
        for name in MODELS:
            folder = Path(temporary) / name
            pre = make_model(folder, name)
            options = [] if pre else ["--no-tokenizer"]
            for kind in TYPES:
                reader, said = convert(folder, kind, *options)
                count = check_bits(folder, name, kind, reader)
                print(f"{name} {kind}: {count} tensors have the bits of gguf; {said.split('; ', 1)[1:]}")
                if LLAMA_CPP and kind != "q4_0":
                    different = check_converter(folder, name, kind, pre, reader)
                    if kind == "q8_0":
                        print("  ours | llama.cpp", *different, sep="\n    ")
        check_edges(Path(temporary) / "llama")
        print("edges have the bits of gguf; NaN, infinity and scales beyond F16 are refused")


if LLAMA_CPP:
    import conversion
    from conversion import base
    conversion.load_all_models()

main()
