#!/usr/bin/env python3
"""Makes the tiny BERT that the page of examples/browser loads, and what transformers computes of it.

    pip install torch transformers safetensors
    scripts/browser_model.py

The weights are random. They lie in two shards, so that the page needs the index, and the head of the
language model is among them, which the page does not need and must not fetch.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM

DIRECTORY = Path(__file__).resolve().parent.parent / "examples/browser/model"
TOKENS = [2, 17, 300, 45, 45, 9, 3]


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=384, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, tie_word_embeddings=False,
        # Larger than usual, so that an error shows in the output.
        initializer_range=0.2,
    )
    model = BertForMaskedLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, std=0.2)
            parameter.data += 0.5
    with torch.no_grad():
        hidden = model.bert(torch.tensor([TOKENS])).last_hidden_state

    DIRECTORY.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    in_second = lambda name: "layer.1." in name or name.startswith("cls.")
    shards = {
        "model-00001-of-00002.safetensors": {n: t for n, t in tensors.items() if not in_second(n)},
        "model-00002-of-00002.safetensors": {n: t for n, t in tensors.items() if in_second(n)},
    }
    for file, shard in shards.items():
        save_file(shard, DIRECTORY / file, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: file for file, shard in shards.items() for name in sorted(shard)},
    }
    write("model.safetensors.index.json", index)
    kept = json.loads(config.to_json_string(use_diff=False))
    names = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "hidden_dropout_prob max_position_embeddings type_vocab_size initializer_range "
        "layer_norm_eps pad_token_id classifier_dropout model_type"
    )
    write("config.json", {name: kept[name] for name in names.split()})
    write("expected.json", {"tokens": TOKENS, "mean": hidden[0].mean(0).tolist()})


def write(name: str, value: object) -> None:
    (DIRECTORY / name).write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
