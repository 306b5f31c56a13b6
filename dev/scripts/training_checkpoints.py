#!/usr/bin/env python3
"""Checkpoints of PyTorch's trainers, read by the command and by PyTorch's own tools: every tensor
must be the same, bit for bit. Run by hand, as CI has no Python. Processes on the CPU are enough:

    python3 -m venv venv
    venv/bin/pip install torch numpy
    DS_BUILD_OPS=0 venv/bin/pip install deepspeed    # without it, its files are skipped
    cargo build --release -p safetensors-bridge-cli
    venv/bin/python dev/scripts/training_checkpoints.py target/release/safetensors

It writes checkpoints of many layouts to a temporary directory, as four ranks of a job do. Then the
command converts each, and its tensors are compared with what PyTorch (`dcp_to_torch_save`) or
DeepSpeed (`zero_to_fp32`) makes of the same directory. What must be refused is tried, too.

    ... training_checkpoints.py target/release/safetensors --time 2000000000

also converts a checkpoint of that many bytes with both, and compares their times.

    ... training_checkpoints.py target/release/safetensors \\
        --fixtures extras/formats/tests/fixtures/training

writes the fixtures of the tests: small directories, and beside each what is in it.
"""

import argparse
import importlib.util
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
WORLD = 4
warnings.filterwarnings("ignore")

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}


# ---- the layouts of distributed checkpoints: the parts that each rank saves, given its meshes


def numbers(*shape, dtype=torch.float32, first=0):
    """Numbers that tell where they belong."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) + first).reshape(shape).to(dtype)


def sharded(tensor, mesh, *placements):
    return distribute_tensor(tensor, mesh, list(placements))


class Net(nn.Module):
    """Layers of uneven sizes, one of them frozen, and two names of one parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(7, 6)
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.second = nn.Linear(5, 6, bias=False)
        self.head = nn.Linear(6, 7, bias=False)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)

    def forward(self, tokens):
        hidden = self.second(self.norm(self.first(self.embed(tokens))))
        return self.head(hidden)


def trained(rank, wrap):
    """A model and its optimizer after a step."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = wrap(Net())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    torch.manual_seed(rank)
    for _ in range(2):
        model(torch.randint(0, 7, (8,))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, get_state_dict


def fully_sharded(mesh):
    from torch.distributed.fsdp import fully_shard

    def wrap(model):
        for layer in (model.first, model.second, model.head):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    return wrap


def fsdp2(rank, line, grid, options=None):
    model, optimizer, get = trained(rank, fully_sharded(line))
    model, optimizer = get(model, optimizer, options=options)
    return {"model": model, "optim": optimizer, "step": 2, "epoch": 0.5}


def fsdp2_flat(rank, line, grid):
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return fsdp2(rank, line, grid, StateDictOptions(flatten_optimizer_state_dict=True))


def hybrid(rank, line, grid):
    model, _, _ = trained(rank, fully_sharded(grid))
    return model.state_dict()


def tensor_parallel(rank, line, grid):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 7))
    parallelize_module(model, grid["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=grid["dp"])
    return {"model": model.state_dict()}


def fsdp1(kind):
    def state(rank, line, grid):
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import StateDictType

        model = FSDP(Net(), use_orig_params=True, device_id=torch.device("cpu"))
        with FSDP.state_dict_type(model, getattr(StateDictType, kind)):
            return {"model": model.state_dict()}

    return state


def every_dtype(rank, line, grid):
    tensors = {}
    for name in DTYPES:
        dtype = getattr(torch, name)
        width = torch.empty(0, dtype=dtype).element_size()
        data = bytes((7 * i + 13) % 251 for i in range(15 * width))
        if name == "bool":
            data = bytes(i % 2 for i in range(15))
        whole = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(5, 3)
        first, last = [0, 2, 4, 5][min(rank, 3)], [2, 4, 5, 5][min(rank, 3)]
        tensors[name] = DTensor.from_local(
            whole[first:last].clone(), line, [Shard(0)], shape=torch.Size((5, 3)), stride=(3, 1),
            run_check=False,
        )
    return tensors


def values(rank, line, grid):
    return {
        "number": 3, "text": "abc", "none": None, "pair": (1, 2.5), "list": [1, 2],
        "nested": {"deep": {"w": numbers(3), "flag": True}},
        "with_tensors": [numbers(2), {"x": numbers(2, first=5)}],
        "tuple": (numbers(2, first=9), "x"),
        "big": torch.Size((2, 3)),
        "w": sharded(numbers(6, 2), line, Shard(0)),
    }


def strided(rank, line, grid):
    return {
        "transposed": numbers(4, 6).t(),
        "channels_last": numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "view": numbers(10, 4)[2:5, 1:3],
        "expanded": numbers(1, 3).expand(4, 3),
        "of_rank": DTensor.from_local(
            numbers(3, 5, first=100 * rank).t(), line, [Shard(0)], run_check=False
        ),
    }


def two_dimensions(first, second):
    def state(rank, line, grid):
        return {"w": sharded(numbers(7, 9), grid, first, second),
                "small": sharded(numbers(2, 3), grid, first, second)}

    return state


def one_dimension(placement, *shape, dtype=torch.float32):
    def state(rank, line, grid):
        return {"w": sharded(numbers(*shape, dtype=dtype), line, placement)}

    return state


def scalars(rank, line, grid):
    return {"a": torch.tensor(7), "b": sharded(torch.tensor(2.5), line, Replicate()),
            "c": torch.tensor(True)}


def empty(rank, line, grid):
    return {"none": torch.empty(0, 3), "of_ranks": sharded(torch.empty(0, 3), line, Shard(0)),
            "flat": sharded(torch.empty(3, 0), line, Shard(0)), "one": numbers(1)}


def tied(rank, line, grid):
    weight = sharded(numbers(8, 3), line, Shard(0))
    return {"embed": weight, "head": weight}


def odd_names(rank, line, grid):
    return {"a b": numbers(2), "é/ü": numbers(2), "x.y": numbers(2), "q\"uote": numbers(2)}


def settings(rank, line, grid):
    """The states of optimizers, by group and by parameter, and an object of another class."""
    common = {"betas": (0.9, 0.999), "fused": None}
    groups = [{"lr": 0.01, **common, "params": ["a.w", "b"]},
              {"lr": 0.5, **common, "params": ["c"]}]
    state = {name: {"exp_avg": sharded(numbers(6, first=first), line, Shard(0))}
             for first, name in enumerate(["a.w", "b", "c"])}
    flat = {f"state.{name}.exp_avg": of["exp_avg"] for name, of in state.items()}
    flat |= {f"param_groups.{name}.{key}": value for group in groups for name in group["params"]
             for key, value in group.items() if key != "params"}
    return {"optim": {"state": state, "param_groups": groups}, "flat": flat, "step": 3,
            "holder": argparse.Namespace(w=numbers(2))}


def no_tensors(rank, line, grid):
    return {"step": 3, "name": "x"}


def many(rank, line, grid):
    return {f"layers.{i}.w": sharded(numbers(5, 3, first=i), line, Shard(0)) for i in range(100)}


DCP_LAYOUTS = {
    "rows": one_dimension(Shard(0), 8, 3),
    "rows_uneven": one_dimension(Shard(0), 7, 3),
    "rows_fewer_than_ranks": one_dimension(Shard(0), 2, 3),
    "columns": one_dimension(Shard(1), 3, 8),
    "columns_uneven": one_dimension(Shard(1), 3, 7, dtype=torch.int32),
    "last_of_three": one_dimension(Shard(2), 2, 3, 9),
    "replicated": one_dimension(Replicate(), 4, 3),
    "grid_rows_columns": two_dimensions(Shard(0), Shard(1)),
    "grid_columns_rows": two_dimensions(Shard(1), Shard(0)),
    "grid_rows_rows": two_dimensions(Shard(0), Shard(0)),
    "grid_rows_replicated": two_dimensions(Shard(0), Replicate()),
    "grid_replicated_columns": two_dimensions(Replicate(), Shard(1)),
    "every_dtype": every_dtype,
    "values": values,
    "strided": strided,
    "scalars": scalars,
    "empty": empty,
    "tied": tied,
    "odd_names": odd_names,
    "settings": settings,
    "no_tensors": no_tensors,
    "many": many,
    "fsdp2": fsdp2,
    "fsdp2_flat_optimizer": fsdp2_flat,
    "hybrid": hybrid,
    "tensor_parallel": tensor_parallel,
    "fsdp1_sharded": fsdp1("SHARDED_STATE_DICT"),
    "fsdp1_full": fsdp1("FULL_STATE_DICT"),
    "fsdp1_flat": fsdp1("LOCAL_STATE_DICT"),
}

# Other ways to write the content of a layout above.
WRITERS = {
    "threads": ("many", {"thread_count": 3}),
    "file_per_item": ("values", {"single_file_per_rank": False}),
    "per_rank": ("rows_uneven", {"per_rank": True}),
    "per_rank_values": ("values", {"per_rank": True}),
    "async": ("grid_rows_columns", {"is_async": True}),
    "megatron": ("values", {"megatron": True}),
}


def save(folder, state, per_rank=False, is_async=False, megatron=False, **options):
    writer = dcp.FileSystemWriter(folder, **options)
    if is_async:
        dcp.async_save(state, storage_writer=writer).result()
    elif per_rank:
        dcp.save(state, storage_writer=writer, use_collectives=False)
    else:
        dcp.save(state, storage_writer=writer)
    if megatron and dist.get_rank() == 0:
        text = {"sharded_backend": "torch_dist", "sharded_backend_version": 1,
                "common_backend": "torch", "common_backend_version": 1}
        (folder / "metadata.json").write_text(json.dumps(text))
        common = {"iteration": 10, "args": argparse.Namespace(lr=1.0), "rng": [numbers(3)]}
        torch.save(common, folder / "common.pt")


def write_layouts(rank, folder, errors):
    """What one rank does."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577")
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo", rank=rank, world_size=WORLD)
    line = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("dp",))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    writers = {name: (name, {}) for name in DCP_LAYOUTS} | WRITERS
    for name, (layout, options) in writers.items():
        dist.barrier()
        try:
            save(folder / "dcp" / name, DCP_LAYOUTS[layout](rank, line, grid), **options)
        except Exception:
            (errors / f"{name}.{rank}").write_text(traceback.format_exc())
            raise
    for name, write in RANK_FILES.items():
        dist.barrier()
        target = folder / "ranks" / name
        target.mkdir(parents=True, exist_ok=True)
        write(rank, line, grid, target)
    dist.barrier()
    dist.destroy_process_group()


# ---- one file a rank, with DTensors


def rank_file(layout):
    def write(rank, line, grid, target):
        state = DCP_LAYOUTS[layout](rank, line, grid)
        torch.save(state, target / f"model_world_size_{WORLD}_rank_{rank}.pt")

    return write


RANK_FILES = {
    name: rank_file(name)
    for name in ["rows", "rows_uneven", "rows_fewer_than_ranks", "columns_uneven", "replicated",
                 "grid_rows_columns", "scalars", "tied", "tensor_parallel"]
}


# ---- ZeRO of DeepSpeed

ZERO_WORLD = 3


class Trained(nn.Module):
    """Parameters of 15, 5, 15 and 21 numbers, one frozen, two names of one, and a buffer."""

    def __init__(self, frozen=True, shared=True):
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(3, 5)
        self.norm = nn.LayerNorm(5)
        self.register_buffer("offset", torch.arange(5) / 4)
        self.register_buffer("seen", torch.tensor(3))
        self.second = nn.Linear(5, 3, bias=False)
        self.last = nn.Linear(3, 7, bias=False)
        if shared:
            self.again = nn.Linear(3, 7, bias=False)
            self.again.weight = self.last.weight
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
        self.scale.requires_grad_(not frozen)

    def forward(self, x):
        hidden = self.norm(self.first(x)) * self.scale + self.offset
        return self.last(self.second(hidden.to(x.dtype)))


ZERO_LAYOUTS = {
    "stage1": (1, {}, {}),
    "stage1_bf16": (1, {"bf16": {"enabled": True}}, {}),
    "stage2": (2, {}, {}),
    "stage2_bf16": (2, {"bf16": {"enabled": True}}, {}),
    "stage2_groups": (2, {}, {"groups": True}),
    "stage2_plain": (2, {}, {"frozen": False, "shared": False}),
    "stage3": (3, {}, {"shared": False}),
    "stage3_bf16": (3, {"bf16": {"enabled": True}}, {"shared": False}),
    "stage3_groups": (3, {}, {"groups": True, "shared": False}),
    "stage3_small_groups": (3, {"sub_group_size": 10}, {"shared": False}),
}


def write_zero(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29578", RANK=str(rank),
                      LOCAL_RANK=str(rank), WORLD_SIZE=str(ZERO_WORLD), DS_ACCELERATOR="cpu",
                      DS_BUILD_OPS="0", LOCAL_SIZE=str(ZERO_WORLD))
    torch.set_num_threads(1)
    import deepspeed

    # Nothing is compiled: PyTorch's own functions are enough.
    deepspeed.ops.__compatible_ops__.clear()
    deepspeed.init_distributed("gloo")
    for name, (stage, more, kinds) in ZERO_LAYOUTS.items():
        more, kinds = dict(more), dict(kinds)
        groups = kinds.pop("groups", False)
        model = Trained(**kinds)
        parameters = [p for p in model.parameters() if p.requires_grad]
        if groups:
            parameters = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.1}]
        zero = {"stage": stage}
        if "sub_group_size" in more:
            zero["sub_group_size"] = more.pop("sub_group_size")
        config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero,
                  "zero_allow_untested_optimizer": True, **more}
        engine, *_ = deepspeed.initialize(
            model=model, config=config, optimizer=torch.optim.AdamW(parameters, lr=0.01))
        dtype = torch.bfloat16 if "bf16" in more else torch.float32
        for step in range(2):
            torch.manual_seed(10 * step + rank)
            loss = engine(torch.randn(4, 3, dtype=dtype)).square().mean()
            engine.backward(loss)
            engine.step()
        engine.save_checkpoint(str(folder / "zero" / name), tag="global_step2")
    dist.barrier()
    dist.destroy_process_group()


def of_deepspeed(directory):
    """What DeepSpeed makes of its checkpoint."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state = get_fp32_state_dict_from_zero_checkpoint(directory)
    return {name: content(tensor) for name, tensor in state.items()}


def widened(found):
    """DeepSpeed's tool also widens untrained tensors; the command keeps them as they are stored."""
    kind, shape, data = found
    if kind != "BF16":
        return found
    values = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).float()
    return "F32", shape, values.numpy().tobytes()


def check_zero(report, folder):
    for directory in sorted((folder / "zero").iterdir()):
        expected = of_deepspeed(directory)
        name = directory.name
        if name.startswith("stage1") and "frozen" not in name:
            # DeepSpeed's tool leaves frozen parameters out, and they are in the file.
            expected["scale"] = content(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
        report.compare(f"zero {name}", directory, expected, convert=widened)
        report.compare(f"zero {name} tag", directory / "global_step2", expected, convert=widened)


# ---- the content of a directory, by PyTorch's tools and by ours


def flat(value, path=()):
    """Every tensor in dictionaries and lists, under the keys on the way to it."""
    if isinstance(value, torch.Tensor):
        return {".".join(path): value.detach()}
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        items = ()
    found = {}
    for key, inner in items:
        found.update(flat(inner, (*path, str(key))))
    return found


def content(tensor):
    """Dtype, shape and bytes."""
    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    data = tensor.contiguous().reshape(-1)
    data = data.view(torch.uint8).numpy().tobytes() if data.numel() else b""
    return dtype, list(tensor.shape), data


def read_safetensors(path):
    """Dtype, shape and bytes of each tensor, and of each other name of one."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    found = {}
    for name, info in header.items():
        start, end = (8 + length + offset for offset in info["data_offsets"])
        found[name] = (info["dtype"], info["shape"], data[start:end])
    found.update({alias: found[kept] for alias, kept in metadata.items() if kept in found})
    return found


def write_expected(path, tensors):
    """Writes `name: (dtype, shape, bytes)` as a safetensors file."""
    header, data = {}, b""
    for name, (dtype, shape, bytes_) in sorted(tensors.items()):
        offsets = [len(data), len(data) + len(bytes_)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += bytes_
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def run(command, *arguments):
    done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Report:
    def __init__(self, command, folder):
        self.command, self.folder = command, folder
        self.layouts = self.tensors = self.refusals = 0
        self.failures = []

    def compare(self, name, directory, expected, *options, convert=lambda found: found):
        """Converts a directory with the command, and compares its tensors."""
        out = self.folder / "out.safetensors"
        out.unlink(missing_ok=True)
        code, text = run(self.command, "convert", directory, out, "--force", *options)
        if code != 0:
            return self.failures.append(f"{name}: {text.strip()}")
        found = {name: convert(it) for name, it in read_safetensors(out).items()}
        expected = {name: convert(it) for name, it in expected.items()}
        for tensor in sorted(found.keys() | expected.keys()):
            if found.get(tensor) != expected.get(tensor):
                here, there = (x.get(tensor, (None,))[:2] for x in (found, expected))
                self.failures.append(f"{name}: {tensor}: found {here}, expected {there}")
        self.layouts += 1
        self.tensors += len(expected)

    def refused(self, name, directory, *says):
        """The command must refuse a directory with these words, and write nothing."""
        out = self.folder / "refused.safetensors"
        code, text = run(self.command, "convert", directory, out)
        if code != 1 or out.exists() or any(word not in text for word in says):
            self.failures.append(f"{name}: expected an error with {says}, found {code}: {text}")
        self.refusals += 1


def of_torch(directory, folder):
    """What PyTorch makes of a distributed checkpoint."""
    whole = folder / "whole.pt"
    dcp_to_torch_save(directory, whole)
    state = torch.load(whole, weights_only=False)
    return {name: content(tensor) for name, tensor in flat(state).items()}


def check_dcp(report, folder, temporary):
    for directory in sorted((folder / "dcp").iterdir()):
        name = directory.name
        # PyTorch's tool reads the file of one rank only.
        whole = {"per_rank": "rows_uneven", "per_rank_values": "values"}.get(name, name)
        expected = of_torch(folder / "dcp" / whole, temporary)
        if name == "megatron":
            expected["rng.0"] = content(numbers(3))
        # It is listed, and cannot be converted.
        drop = ["--drop", "holder"] if name == "settings" else []
        report.compare(f"dcp {name}", directory, expected, *drop)


def check_ranks(report, folder, temporary):
    """One file a rank: of the same tensors as a distributed checkpoint of that name."""
    refused = {"grid_rows_columns": "a mesh of 2 dimensions", "tensor_parallel": "dimensions"}
    for directory in sorted((folder / "ranks").iterdir()):
        name = directory.name
        if name in refused:
            report.refused(f"ranks {name}", directory, refused[name], "tensor")
        else:
            report.compare(f"ranks {name}", directory, of_torch(folder / "dcp" / name, temporary))


def copy(directory, temporary):
    target = temporary / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target)
    return target


def check_damaged(report, folder, temporary):
    rows = folder / "dcp" / "rows"
    damaged = copy(rows, temporary)
    (damaged / ".metadata").unlink()
    report.refused("unfinished", damaged, "not complete", ".metadata")
    damaged = copy(rows, temporary)
    (damaged / "__1_0.distcp").unlink()
    report.refused("missing rank", damaged, "__1_0.distcp")
    damaged = copy(rows, temporary)
    data = (damaged / "__1_0.distcp").read_bytes()
    (damaged / "__1_0.distcp").write_bytes(data[:-1])
    report.refused("cut", damaged, "__1_0.distcp")
    damaged = copy(rows, temporary)
    shutil.copy(folder / "dcp" / "columns" / "__1_0.distcp", damaged)
    report.refused("another step", damaged, "__1_0.distcp")
    damaged = copy(folder / "dcp" / "per_rank", temporary)
    (damaged / "__2.metadata").unlink()
    report.refused("missing metadata", damaged, "__2.metadata")
    damaged = copy(folder / "dcp" / "per_rank", temporary)
    (damaged / "__3.metadata").unlink()
    report.refused("missing last", damaged, "w")
    report.refused("one file", rows / "__0_0.distcp", "open the directory")


def compare_times(report, temporary, size):
    """One larger checkpoint, converted by PyTorch's tool and by the command."""
    count = max(1, size // (64 << 20))
    state = {f"layers.{i}.weight": torch.randn(4096, 4096) for i in range(count)}
    directory = temporary / "large"
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, thread_count=2), no_dist=True)
    del state
    times = {"dcp_to_torch_save": [], "safetensors convert": []}
    for _ in range(3):
        start = time.perf_counter()
        script = ("import sys; from torch.distributed.checkpoint.format_utils import "
                  "dcp_to_torch_save as f; import time; t = time.perf_counter(); "
                  "f(sys.argv[1], sys.argv[2]); print(time.perf_counter() - t)")
        done = subprocess.run([sys.executable, "-c", script, directory, temporary / "large.pt"],
                              capture_output=True, text=True, check=True)
        # Without the time that Python takes to start.
        times["dcp_to_torch_save"].append(float(done.stdout.split()[-1]))
        (temporary / "large.pt").unlink()
        start = time.perf_counter()
        code, text = run(report.command, "convert", directory, temporary / "large-out")
        assert code == 0, text
        times["safetensors convert"].append(time.perf_counter() - start)
        shutil.rmtree(temporary / "large-out")
    best = {name: min(seconds) for name, seconds in times.items()}
    ratio = best["dcp_to_torch_save"] / best["safetensors convert"]
    gigabytes = count * (64 << 20) / 1e9
    print(f"{gigabytes:.2f} GB: {best}, {ratio:.1f} times as fast")


FIXTURES = {
    "grid_rows_columns": "dcp/grid_rows_columns", "strided": "dcp/strided", "values": "dcp/values",
    "settings": "dcp/settings", "per_rank": "dcp/per_rank", "ranks": "ranks/rows_uneven",
    "stage2": "zero/stage2", "stage3": "zero/stage3",
}


def write_fixtures(folder, target, temporary):
    for name, source in FIXTURES.items():
        shutil.rmtree(target / name, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.py")
        shutil.copytree(folder / source, target / name, ignore=ignored)
        for metadata in (target / name).glob("*.metadata"):
            # The fixture does not say where it was made.
            content = pickle.loads(metadata.read_bytes())
            content.storage_meta.checkpoint_id = Path("checkpoint")
            metadata.write_bytes(pickle.dumps(content))
        if source.startswith("zero/"):
            expected = of_deepspeed(folder / source)
        else:
            whole = {"per_rank": "rows_uneven", "ranks": "rows_uneven"}.get(name, name)
            expected = of_torch(folder / "dcp" / whole, temporary)
        write_expected(target / f"{name}.safetensors", expected)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--time", type=int)
    parser.add_argument("--fixtures", type=Path)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        folder = arguments.keep or temporary / "checkpoints"
        if not folder.exists():
            errors = temporary / "errors"
            errors.mkdir()
            mp.spawn(write_layouts, (folder, errors), nprocs=WORLD)
            if HAS_DEEPSPEED:
                mp.spawn(write_zero, (folder,), nprocs=ZERO_WORLD)
        report = Report(arguments.command, temporary)
        check_dcp(report, folder, temporary)
        check_ranks(report, folder, temporary)
        check_damaged(report, folder, temporary)
        if HAS_DEEPSPEED:
            check_zero(report, folder)
        if arguments.fixtures:
            write_fixtures(folder, arguments.fixtures, temporary)
        if arguments.time:
            compare_times(report, temporary, arguments.time)
    print(f"{report.layouts} layouts, {report.tensors} tensors, {report.refusals} refusals")
    print("\n".join(report.failures))
    sys.exit(bool(report.failures))


if __name__ == "__main__":
    main()
