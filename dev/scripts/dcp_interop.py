#!/usr/bin/env python3
"""Compares checkpoints of PyTorch's `torch.distributed.checkpoint` (DCP) in safetensors files with
what this project reads and writes: with torch on the CPU, by hand.

    dev/scripts/dcp_interop.py target/release/safetensors [--mib 256]

Layouts are written by torch's own planner and writer: one process stands for each rank in turn. For
each: torch's own reader, and `convert` of the directory, give the same bits. Then `convert --dcp`
writes the ranks' files, which torch's reader and its consolidation accept. At the end both
consolidate the same large directory, in turns.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint import _consolidate_hf_safetensors as hf
except ImportError as missing:
    print(f"SKIPPED: {missing}. Install torch (CPU) and safetensors.", file=sys.stderr)
    sys.exit(77)


def file_of(directory, rank, number=1, count=1):
    return directory / f"shard-{rank + 1:05}-model-{number:05}-of-{count:05}.safetensors"


def write_parts(directory, tensors, boxes):
    """Writes the files that the ranks of torch write: `boxes` is name -> [(rank, offsets, sizes)].

    The metadata and the bytes are those of `filesystem._write_files_from_queue`.
    """
    directory.mkdir(parents=True)
    ranks = {rank for of in boxes.values() for rank, _, _ in of}
    for rank in ranks:
        parts, info = {}, {}
        for name, of in boxes.items():
            for owner, offsets, sizes in of:
                if owner == rank:
                    place = tuple(slice(at, at + size) for at, size in zip(offsets, sizes))
                    parts[name] = tensors[name][place].contiguous()
                    info[name] = {"saved_offsets": list(offsets)}
        metadata = {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}
        save_file(parts, file_of(directory, rank), metadata=metadata)


WORKER = """
import sys, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
rank, world, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
torch.manual_seed(1)
flat = init_device_mesh("cpu", (world,))
grid = init_device_mesh("cpu", (2, world // 2))
state = {
    "rows": distribute_tensor(torch.randn(8, 6), flat, [Shard(0)]),
    "columns": distribute_tensor(torch.randn(6, 8, dtype=torch.bfloat16), flat, [Shard(1)]),
    "uneven": distribute_tensor(torch.randn(5, 3), flat, [Shard(0)]),
    "empty": distribute_tensor(torch.randn(2, 3), flat, [Shard(0)]),
    "grid": distribute_tensor(torch.randn(7, 9, dtype=torch.float64), grid, [Shard(0), Shard(1)]),
    "half": distribute_tensor(torch.randn(6, 4).half(), grid, [Replicate(), Shard(0)]),
    "cube": distribute_tensor(torch.randn(3, 5, 4), grid, [Shard(2), Shard(1)]),
    "whole": distribute_tensor(torch.randn(4, 2), flat, [Replicate()]),
    "plain": torch.randn(3),
    "ints": distribute_tensor(torch.arange(12).reshape(4, 3), flat, [Shard(0)]),
    "bools": distribute_tensor(torch.arange(9) % 2 == 0, flat, [Shard(0)]),
    "scalar": torch.tensor(2.5),
}
full = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}
dcp.save(state, storage_writer=HuggingFaceStorageWriter(out, save_distributed=True))
if rank == 0:
    torch.save(full, out + ".full")
dist.barrier()
dist.destroy_process_group()
"""


def by_torch_writer(directory, world):
    """What `HuggingFaceStorageWriter` of so many processes writes."""
    store = directory.with_suffix(".store")
    command = [sys.executable, "-c", WORKER]
    args = [str(world), str(store), str(directory)]
    processes = [subprocess.Popen([*command, str(rank), *args]) for rank in range(world)]
    if any(process.wait() for process in processes):
        sys.exit("torch did not save")
    return torch.load(str(directory) + ".full")


def by_torch_reader(directory, like):
    """What torch reads."""
    state = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(directory)))
    return state


def check_same(expected, found, what):
    assert set(expected) == set(found), f"{what}: {set(expected) ^ set(found)}"
    for name, tensor in expected.items():
        other = found[name]
        is_same = tensor.dtype == other.dtype and tensor.shape == other.shape
        bits = lambda it: it.contiguous().reshape(-1).view(torch.uint8)
        assert is_same and torch.equal(bits(tensor), bits(other)), f"{what}: {name}"


def cut(shape, cuts):
    """Boxes of a shape that is cut at these positions of each dimension."""
    boxes = [([], [])]
    for length, at in zip(shape, cuts):
        ends = [0, *at, length]
        spans = [(a, b - a) for a, b in zip(ends, ends[1:])]
        boxes = [([*o, a], [*s, n]) for o, s in boxes for a, n in spans]
    return [(rank, offsets, sizes) for rank, (offsets, sizes) in enumerate(boxes)]


def layouts():
    """Layouts that no mesh makes: uneven grids in up to four dimensions, of all dtypes."""
    shapes = [
        ((6, 4), ([2, 3], [])), ((6, 4), ([], [1])), ((6, 4), ([1, 5], [3])),
        ((3, 5, 4), ([1], [2], [1, 2])), ((2, 3, 2, 5), ([1], [], [1], [4])),
        ((7,), ([3, 7, 7],)), ((1, 1), ([], [])), ((0, 3), ([], [1])),
    ]
    dtypes = [
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool,
    ]
    for number, (shape, cuts) in enumerate(shapes):
        for dtype in dtypes[number % 3 :: 3]:
            values = torch.randint(0, 100, shape).to(dtype)
            yield f"{shape} {cuts} {dtype}", {"w": values}, {"w": cut(shape, cuts)}


def convert(program, *args):
    subprocess.run([program, "convert", *map(str, args)], check=True, stdout=subprocess.DEVNULL)


def check_reading(program, temp):
    count = 0
    for world in (2, 4):
        directory = temp / f"torch-{world}"
        full = by_torch_writer(directory, world)
        check_same(full, by_torch_reader(directory, full), "torch's reader")
        convert(program, directory, temp / f"{world}.safetensors")
        check_same(full, load_file(temp / f"{world}.safetensors"), f"torch, {world} ranks")
        count += len(full)
    for number, (what, tensors, boxes) in enumerate(layouts()):
        directory = temp / f"layout-{number}"
        write_parts(directory, tensors, boxes)
        check_same(tensors, by_torch_reader(directory, tensors), f"torch's reader: {what}")
        convert(program, directory, temp / f"layout-{number}.safetensors")
        check_same(tensors, load_file(temp / f"layout-{number}.safetensors"), what)
        count += 1
    print(f"read: {count} tensors in as many layouts have the bits that torch reads")


def check_writing(program, temp):
    torch.manual_seed(2)
    tensors = {
        "rows": torch.randn(8, 6), "uneven": torch.randn(5, 3).half(), "norm": torch.randn(4),
        "columns": torch.randn(4, 8).bfloat16(), "few": torch.randn(2, 3).double(),
    }
    save_file(tensors, temp / "in.safetensors")
    rules = ["rows=split:0", "uneven=uneven:0", "columns=split:1", "norm=replicate", "few=uneven:0"]
    rules = [arg for rule in rules for arg in ("--rule", rule)]
    for ranks, size in (("1", "1GB"), ("2", "1GB"), ("4", "1GB"), ("4", "40")):
        out = temp / f"ours-{ranks}-{size}"
        convert(program, temp / "in.safetensors", out, "--ranks", ranks, "--dcp",
                "--max-shard-size", size, *rules)
        check_same(tensors, by_torch_reader(out, tensors), f"torch reads ours, {ranks} ranks")
        whole = temp / f"consolidated-{ranks}-{size}"
        whole.mkdir()
        names = dict.fromkeys(tensors, 1)
        hf.consolidate_safetensors_files(str(out), str(whole), fqn_to_index_mapping=names)
        check_same(tensors, load_file(next(whole.glob("*.safetensors"))), "torch consolidates ours")
    print("write: torch's reader and its consolidation accept the files of 1, 2 and 4 ranks")


def time_both(program, temp, mib):
    # Eight tensors with rows of 1 KiB, on eight ranks.
    ranks, rows = 8, mib * 1024 // 8
    torch.manual_seed(3)
    for kind, dims in (("rows", [0]), ("columns", [1]), ("grid", [0, 1])):
        tensors = {f"layers.{i}.w": torch.randn(rows, 256) for i in range(8)}
        halves = lambda n, k: [n * i // k for i in range(1, k)]
        parts = {(0,): (8, 1), (1,): (1, 8), (0, 1): (4, 2)}[tuple(dims)]
        boxes = {
            name: cut(it.shape, [halves(it.shape[0], parts[0]), halves(it.shape[1], parts[1])])
            for name, it in tensors.items()
        }
        directory = temp / f"large-{kind}"
        write_parts(directory, tensors, boxes)
        times = {"torch": [], "ours": []}
        for turn in range(3):
            out = temp / f"by-torch-{kind}-{turn}"
            out.mkdir()
            began = time.perf_counter()
            names = dict.fromkeys(tensors, 1)
            hf.consolidate_safetensors_files(
                str(directory), str(out), num_threads=2, fqn_to_index_mapping=names
            )
            times["torch"].append(time.perf_counter() - began)
            began = time.perf_counter()
            convert(program, directory, temp / f"by-us-{kind}-{turn}.safetensors")
            times["ours"].append(time.perf_counter() - began)
            if turn == 0:
                found = load_file(temp / f"by-us-{kind}-{turn}.safetensors")
                check_same(tensors, found, kind)
                check_same(load_file(next(out.glob("*.safetensors"))), found, f"torch's {kind}")
            shutil.rmtree(out)
            (temp / f"by-us-{kind}-{turn}.safetensors").unlink()
        of = {who: statistics.median(them) for who, them in times.items()}
        size = sum(it.numel() * it.element_size() for it in tensors.values()) / 2**20
        print(f"{kind}: {size:.0f} MiB, {ranks} ranks: torch {of['torch']:.2f} s, "
              f"ours {of['ours']:.2f} s: {of['torch'] / of['ours']:.1f} times as fast")
        shutil.rmtree(directory)


def main():
    sys.stdout.reconfigure(line_buffering=True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--mib", type=int, default=256, help="the size of what is timed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        check_reading(args.program, Path(temp))
        check_writing(args.program, Path(temp))
        time_both(args.program, Path(temp), args.mib)


if __name__ == "__main__":
    main()
