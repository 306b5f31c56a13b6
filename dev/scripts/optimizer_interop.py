#!/usr/bin/env python3
"""Trainings that go from PyTorch to candle and burn and on there, and back.

    python dev/scripts/optimizer_interop.py                # needs torch 2.15 and safetensors
    python dev/scripts/optimizer_interop.py --fixtures     # rewrites the fixtures instead

The fixtures in dev/testing/fixtures/optimizer are what the tests of both adapters read:
training checkpoints of a small model after BEFORE steps, and the losses of PyTorch's own
continuation. The check goes the other way. The tests of the adapters train, save for PyTorch, and
go on; PyTorch goes on from what they saved, with the lines that the documentation shows, and every
loss must be the same within the rounding.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"SKIPPED: {missing}. Nothing was compared with PyTorch.", file=sys.stderr)
    sys.exit(0)

from torch import nn

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "dev/testing/fixtures/optimizer"
BEFORE, AFTER = 5, 20
NAMES = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]

# All compute in F32, and sums differ in their order: some units in the last place. For Adam, burn
# also has its betas in F32, where PyTorch and candle have F64: 1 - 0.999 is off by 1.3e-5, and with
# it each step of the second moment and the correction of its bias. The tests have the same numbers.
ROUNDING, BETAS_IN_F32 = 16 * 2.0**-23, 2e-5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3, 5)
        self.fc2 = nn.Linear(5, 2)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, generator=generator)
    return x, torch.stack([x.sum(1).sin(), x.prod(1)], 1)


def steps(model, optimizer, count):
    """The losses before each step."""
    x, y = data()
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def model():
    torch.manual_seed(0)
    return Model()


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1),
    "amsgrad": lambda parameters: torch.optim.AdamW(parameters, lr=0.02, amsgrad=True),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.02, eps=(1e-30, 1e-3)),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
}


def flat(state, prefix="state."):
    return {
        f"{prefix}{owner}.{kind}": value.detach().clone().contiguous()
        for owner, kinds in state.items()
        for kind, value in kinds.items()
        if isinstance(value, torch.Tensor)
    }


def fixtures():
    FIXTURES.mkdir(parents=True, exist_ok=True)
    x, y = data()
    for kind, make in OPTIMIZERS.items():
        net = model()
        assert [name for name, _ in net.named_parameters()] == NAMES
        optimizer = make(net.parameters())
        steps(net, optimizer, BEFORE)
        saved = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        if kind == "adamw":
            torch.save(saved, FIXTURES / "adamw.pt")
        tensors = {f"model.{name}": value.clone() for name, value in net.state_dict().items()}
        tensors |= flat(saved["optimizer"]["state"], "optimizer.state.")
        groups = json.dumps(saved["optimizer"]["param_groups"])
        save_file(tensors, FIXTURES / f"{kind}.safetensors", {"optimizer.param_groups": groups})
        losses = torch.tensor(steps(net, optimizer, AFTER))
        after = flat(dict(zip(NAMES, optimizer.state_dict()["state"].values())))
        after |= {f"model.{name}": value.clone() for name, value in net.state_dict().items()}
        expected = {"x": x, "y": y, "losses": losses} | after
        save_file(expected, FIXTURES / f"{kind}_after.safetensors")


def from_candle(path, net, optimizer):
    """The lines that the documentation of safetensors_candle::train shows."""
    with safe_open(path, "pt") as file:
        net.load_state_dict({name: file.get_tensor(name) for name in net.state_dict()})
        prefix = "safetensors_bridge.adamw."
        saved = {k: float(v) for k, v in file.metadata().items() if k.startswith(prefix)}
        names = [name for name, _ in net.named_parameters()]
        state = {
            name: {
                "step": torch.tensor(saved[prefix + "step"]),
                "exp_avg": file.get_tensor(name + ".exp_avg"),
                "exp_avg_sq": file.get_tensor(name + ".exp_avg_sq"),
            }
            for name in names
        }
        [group] = optimizer.state_dict()["param_groups"]
        group |= {key: saved[prefix + key] for key in ("lr", "eps", "weight_decay")}
        group |= {"betas": (saved[prefix + "beta1"], saved[prefix + "beta2"]), "params": names}
        optimizer.load_state_dict({"state": state, "param_groups": [group]})


def from_burn(path, net, optimizer):
    """The lines that the documentation of safetensors_burn::train shows."""
    net.load_state_dict(load_file(path.parent / "model.safetensors"))
    tensors = load_file(path)
    names = [name for name, _ in net.named_parameters()]
    state = {name: {} for name in names}
    for key, tensor in tensors.items():
        name, kind = key.removeprefix("state.").rsplit(".", 1)
        if name in state:
            state[name][kind] = tensor
    assert all(state.values())
    [group] = optimizer.state_dict()["param_groups"]
    group["params"] = names
    optimizer.load_state_dict({"state": state, "param_groups": [group]})


def back(directory):
    """Whether PyTorch goes on as the adapters do."""
    fails = []
    for adapter, features in (("candle", []), ("burn", ["--features", "train"])):
        folder = directory / adapter
        folder.mkdir()
        package = f"safetensors-{adapter}"
        cargo = ["cargo", "test", "--quiet", "-p", package, *features, "--test", "it", "interop"]
        environment = os.environ | {"SAFETENSORS_INTEROP_DIR": str(folder)}
        subprocess.run(cargo, cwd=ROOT, env=environment, check=True)
        kinds = ["adamw"] if adapter == "candle" else list(OPTIMIZERS)
        for kind in kinds:
            net = Model()
            optimizer = OPTIMIZERS[kind](net.parameters())
            load = from_candle if adapter == "candle" else from_burn
            load(folder / kind / "optimizer.safetensors", net, optimizer)
            here = torch.tensor(steps(net, optimizer, AFTER), dtype=torch.float64)
            there = load_file(folder / kind / "losses.safetensors")["losses"].double()
            off = ((here - there).abs().max() / there.max()).item()
            is_adam = kind in ("adamw", "amsgrad")
            most = BETAS_IN_F32 if adapter == "burn" and is_adam else ROUNDING
            print(f"{adapter} {kind}: losses of {AFTER} steps differ by {off:.1e} of the largest")
            if off > most:
                fails.append(f"{adapter} {kind}: {off:.1e} is over {most:.1e}")
    return fails


if __name__ == "__main__":
    if sys.argv[1:] == ["--fixtures"]:
        fixtures()
        sys.exit(0)
    with tempfile.TemporaryDirectory() as directory:
        problems = back(Path(directory))
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    sys.exit(bool(problems))
