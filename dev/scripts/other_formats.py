#!/usr/bin/env python3
"""Writes the fixtures of `extras/formats/tests`: files of PyTorch and GGUF, and their content.

Run by hand, as CI has no Python. PyTorch for the CPU is enough:

    python3 -m venv venv
    venv/bin/pip install torch numpy gguf
    venv/bin/python dev/scripts/other_formats.py extras/formats/tests/fixtures

Each file `NAME.pt`, `NAME.bin` or `NAME.gguf` has its content beside it as `NAME.safetensors`,
written here from the tensors that PyTorch or the package `gguf` holds in memory. Files in
`refused` have none. The files are made from fixed numbers, so that they stay as they are with the
same versions of the packages. The tables in `src/gguf/dequantize/grids.bin` are written, too.
"""

import array
import io
import json
import pickle
import struct
import sys
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import List, Optional

import gguf
import numpy as np
import torch
from torch import nn

# The names of the format for the types of PyTorch.
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "F4",
}


def write_expected(path, tensors):
    """Writes `name: (dtype, shape, bytes)` as a safetensors file."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def content(tensor):
    """Dtype, shape and bytes of a tensor of PyTorch."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = list(tensor.shape)
    width = tensor.element_size()
    if tensor.numel() == 0:
        data = b""
    else:
        # The elements one by one, by their definition: other ways do not know every type.
        storage = bytes(tensor.untyped_storage())
        indices = np.ndindex(*shape)
        first, strides = tensor.storage_offset(), tensor.stride()
        places = (first + sum(i * s for i, s in zip(index, strides)) for index in indices)
        data = b"".join(storage[place * width:(place + 1) * width] for place in places)
    if dtype == "float4_e2m1fn_x2":
        shape[-1] *= 2
    return DTYPES[dtype], shape, data


def flat(value, path=()):
    """Every tensor in dictionaries and lists, under the keys on the way to it."""
    if isinstance(value, torch.Tensor):
        return {".".join(path): content(value.detach())}
    found = {}
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        items = ()
    for key, inner in items:
        found.update(flat(inner, (*path, str(key))))
    return found


def of_bytes(data, dtype):
    """A tensor of six elements, which are these bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(2, 3)


def every_dtype():
    tensors = OrderedDict()
    for number, name in enumerate(DTYPES):
        dtype = getattr(torch, name)
        width = torch.empty(0, dtype=dtype).element_size()
        data = bytes((7 * i + 13 * number) % 251 for i in range(6 * width))
        if name == "bool":
            data = bytes([0, 1, 1, 0, 1, 0])
        tensors[f"of.{name}"] = of_bytes(data, dtype)
    return tensors


def strided():
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.int16).reshape(2, 3, 4, 5)
    return {
        "whole": base,
        "transposed": base.transpose(0, 2),
        "narrow": base[:, 1:, ::2],
        "offset": base[1],
        "expanded": torch.tensor([[1.5], [2.5]]).expand(2, 3),
        "channels_last": images.to(memory_format=torch.channels_last),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.empty(0, 3),
        "broadcast": torch.tensor(3.0).expand(4, 5),
    }


def tied():
    embed = nn.Parameter(torch.arange(12, dtype=torch.float32).reshape(4, 3))
    shared = torch.arange(10, dtype=torch.float32)
    return {
        "model.embed.weight": embed,
        "lm_head.weight": embed,
        "same": shared,
        "again": shared,
        "front": shared[:6],
        "back": shared[4:],
        "reshaped": shared.view(2, 5),
    }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.again = self.first
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("hidden", torch.arange(4), persistent=False)
        self.plain = torch.ones(2)


def training():
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.copy_(torch.arange(6.0).reshape(2, 3))
        net.bias.fill_(0.5)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "name": "a run",
        "seed": 2**70,
        "loss": 0.25,
        "flags": {True, False},
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": [torch.tensor([1.0]), (torch.tensor([2, 3]), None)],
    }


def pytorch(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "refused").mkdir(exist_ok=True)
    models = {
        "every_dtype": every_dtype(), "strided": strided(), "tied": tied(), "training": training(),
    }
    for name, model in models.items():
        expected = flat(model)
        write_expected(folder / f"{name}.safetensors", expected)
        torch.save(model, folder / f"{name}.pt")
        torch.save(model, folder / f"{name}_legacy.pt", _use_new_zipfile_serialization=False)
        write_expected(folder / f"{name}_legacy.safetensors", expected)
    torch.save(models["training"], folder / "protocol_5.pt", pickle_protocol=5)
    write_expected(folder / "protocol_5.safetensors", flat(models["training"]))

    net = Net()
    torch.save(net, folder / "module.pt")
    write_expected(folder / "module.safetensors", flat(net.state_dict()))
    alone = torch.arange(4.0)
    torch.save(alone, folder / "alone.pt")
    write_expected(folder / "alone.safetensors", {"alone": content(alone)})

    # The same archive with its members compressed, as PyTorch never writes it but reads it.
    with zipfile.ZipFile(folder / "strided.pt") as stored:
        with zipfile.ZipFile(folder / "deflated.pt", "w", zipfile.ZIP_DEFLATED) as deflated:
            for name in stored.namelist():
                info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                deflated.writestr(info, stored.read(name), zipfile.ZIP_DEFLATED)
    write_expected(folder / "deflated.safetensors", flat(models["strided"]))

    sharded = folder / "sharded"
    sharded.mkdir(exist_ok=True)
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    shards = [{"a": torch.ones(2), "tied": torch.ones(1)}, {"b": torch.zeros(3)}]
    weight_map = {}
    for name, shard in zip(names, shards):
        torch.save(shard, sharded / name)
        weight_map.update({tensor: name for tensor in shard})
    index = {"metadata": {"total_size": 24}, "weight_map": weight_map}
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")

    refused = {
        "complex128": {"fine": torch.ones(1), "wide": torch.ones(2, dtype=torch.complex128)},
        "sparse": {"s": torch.eye(3).to_sparse()},
        "nested_class": {"x": Holder()},
    }
    for name, model in refused.items():
        torch.save(model, folder / "refused" / f"{name}.pt")
    script(folder)
    arrays(folder)
    # The class of a module is then named by an identifier, with the place and text of its source.
    torch.serialization.get_source_lines_and_file = lambda _: (["class Net:\n"], 0, "net.py")
    torch.save(net, folder / "module_legacy.pt", _use_new_zipfile_serialization=False)
    write_expected(folder / "module_legacy.safetensors", flat(net.state_dict()))
    plain = io.BytesIO()
    pickle.dump({"a": 1}, plain, protocol=2)
    (folder / "refused" / "plain.pkl").write_bytes(plain.getvalue())


class Holder:
    def __init__(self):
        self.tensor = torch.ones(1)


@torch.jit.interface
class Layer(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        pass


class Inner(nn.Module):
    """State of every kind, and attributes that are no state."""

    layer: Layer

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("hidden", torch.arange(4), persistent=False)
        self.register_parameter("nothing", None)
        self.plain = torch.ones(2)
        self.maybe: Optional[torch.Tensor] = torch.ones(1)
        self.several: List[torch.Tensor] = [torch.ones(1)]
        self.number = 3

    def forward(self, x):
        maybe = self.maybe
        if maybe is not None:
            x = x + maybe
        return self.layer.forward(x) + self.plain + self.several[0] * self.number


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.list = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.dict = nn.ModuleDict({"norm": nn.BatchNorm1d(2)})
        self.inner = Inner()
        self.same = self.inner
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.list[0].weight

    def forward(self, x):
        for layer in self.list:
            x = layer(x)
        for _, layer in self.dict.items():
            x = layer(x)
        return self.tied(self.same(self.inner(x)))


def script(folder):
    """TorchScript: scripted, traced and frozen modules, and refused ones."""
    warnings.simplefilter("ignore")
    outer = Outer().eval()
    small = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).eval()
    for name, module in {
        "script": torch.jit.script(outer),
        "traced": torch.jit.trace(outer, torch.ones(1, 2)),
        "frozen": torch.jit.freeze(torch.jit.script(small)),
    }.items():
        path = folder / f"{name}.pt"
        torch.jit.save(module, path)
        without_debug(path)
        state = torch.jit.load(path).state_dict()
        write_expected(folder / f"{name}.safetensors", flat({**state, **constants(path)}))
    quantised = torch.ao.quantization.quantize_dynamic(small, dtype=torch.qint8)
    packed = folder / "refused" / "packed.pt"
    torch.jit.save(torch.jit.script(quantised), packed)
    without_debug(packed)
    exported = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    path = folder / "refused" / "exported.pt2"
    torch.export.save(exported, path)
    # Only the names of the members count.
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), b"{}")


def constants(path):
    """The constants of the code in an archive, by the names that the code has for them."""
    saved = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(saved, "w") as plain:
        root = archive.namelist()[0].split("/")[0]
        for name in archive.namelist():
            # As if the constants had been saved.
            renamed = name.replace(f"{root}/constants", f"{root}/data")
            if renamed != name or name.endswith(("/version", "/byteorder")):
                plain.writestr(renamed, archive.read(name))
    saved.seek(0)
    values = torch.load(saved, weights_only=True)
    return {f"CONSTANTS.c{position}": value for position, value in enumerate(values)}


def without_debug(path):
    """Writes an archive again without its parts for debuggers, which are most of it."""
    with zipfile.ZipFile(path) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members:
            if not member.filename.endswith((".debug_pkl", "traced_inputs.pkl")):
                info = zipfile.ZipInfo(member.filename, (1980, 1, 1, 0, 0, 0))
                archive.writestr(info, content, member.compress_type)


def arrays(folder):
    """Arrays and numbers of NumPy in a file of PyTorch."""
    base = np.arange(6).reshape(2, 3)
    kinds = "?bBhHiIqQefdF"
    values = {f"of.{np.dtype(kind).name}": (base % 2 if kind == "?" else base).astype(kind)
              for kind in kinds}
    values.update({
        "big": {kind: base.astype(f">{kind}") for kind in ("f4", "i2", "c8", "u8")},
        "fortran": np.asfortranarray(base.astype("f4")),
        "big_fortran": np.asfortranarray(base.astype(">f8")),
        "strided": np.arange(12, dtype="i4").reshape(3, 4)[:, ::2],
        "scalar": np.float64(0.25),
        "zero_dim": np.array(7, dtype="i2"),
        "empty": np.empty((0, 3), dtype="f4"),
        "texts": np.array(["a", "b"]),
        "names": np.array(["a", None], dtype=object),
        "high": np.frombuffer(bytes(range(128, 256)), dtype="u1"),
    })
    tensors = {}
    for name, value in values.items():
        for key, array_ in (value.items() if isinstance(value, dict) else [("", value)]):
            if np.asarray(array_).dtype.kind in "OU":
                continue
            tensors[f"{name}.{key}".rstrip(".")] = numpy_content(array_)
    tensors["bytes"] = ("U8", [3], bytes([0, 200, 255]))
    values["bytes"] = bytes([0, 200, 255])
    for name, options in {
        "arrays": {}, "arrays_protocol_5": {"pickle_protocol": 5},
        "arrays_legacy": {"_use_new_zipfile_serialization": False},
    }.items():
        torch.save(values, folder / f"{name}.pt", **options)
        write_expected(folder / f"{name}.safetensors", tensors)
    torch.save({
        "fine": np.ones(1, dtype="f4"),
        "wide": np.ones(2, dtype="c16"),
        "objects": np.array([1.5, None], dtype=object),
        "dates": np.array(["2026-01-01"], dtype="M8[D]"),
        "typed": array.array("f", [1.0]),
        "masked": np.ma.array([1.0, 2.0], mask=[True, False]),
    }, folder / "refused" / "arrays.pt")


def numpy_content(value):
    """Dtype, shape and bytes of an array of NumPy."""
    value = np.asarray(value)
    names = {"bool": "BOOL", "complex64": "C64"}
    kind = value.dtype
    name = names.get(kind.name) or f"{kind.kind.upper()}{kind.itemsize * 8}"
    return name, value.shape, value.astype(kind.newbyteorder("<")).tobytes()


def q1_0(data):
    """The numbers of Q1_0 as `dequantize_row_q1_0` of ggml computes them; `gguf` 0.19 does not."""
    blocks = data.reshape(-1, 18)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.where(bits == 1, scale, -scale).reshape(data.shape[0], -1)


def gguf_files(folder):
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / "plain.gguf", "llama")
    writer.add_string("general.name", "a model")
    writer.add_uint8("of.u8", 255)
    writer.add_int8("of.i8", -128)
    writer.add_uint16("of.u16", 65535)
    writer.add_int16("of.i16", -32768)
    writer.add_uint32("of.u32", 2**32 - 1)
    writer.add_int32("of.i32", -(2**31))
    writer.add_uint64("of.u64", 2**64 - 1)
    writer.add_int64("of.i64", -(2**63))
    writer.add_float32("of.f32", 0.1)
    writer.add_float64("of.f64", 0.1)
    writer.add_bool("of.bool", True)
    writer.add_array("of.texts", ["a", "b"])
    writer.add_array("of.numbers", [1, 2, 3])
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(100)])
    expected = {}
    for name, dtype, kind in [
        ("f32", np.float32, "F32"), ("f16", np.float16, "F16"), ("f64", np.float64, "F64"),
        ("i8", np.int8, "I8"), ("i16", np.int16, "I16"), ("i32", np.int32, "I32"),
        ("i64", np.int64, "I64"),
    ]:
        array = (np.arange(6) - 2).astype(dtype).reshape(2, 3)
        writer.add_tensor(f"of.{name}", array)
        expected[f"of.{name}"] = (kind, array.shape, array.tobytes())
    kind = gguf.GGMLQuantizationType.BF16
    array = gguf.quants.quantize(np.arange(6, dtype=np.float32).reshape(2, 3), kind)
    writer.add_tensor("of.bf16", array, raw_dtype=kind)
    expected["of.bf16"] = ("BF16", (2, 3), array.tobytes())
    finish(writer)
    write_expected(folder / "plain.safetensors", expected)

    split_files(folder)

    # Random blocks reach every bit of a type, which quantised numbers would not.
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(folder / "quantised.gguf", "llama")
    expected = {}
    for kind in gguf.GGMLQuantizationType:
        length, width = gguf.GGML_QUANT_SIZES[kind]
        if length == 1:
            continue
        rows, blocks = 1, 1 if length == 256 else 3
        name = f"of.{kind.name}"
        while True:
            data = random.integers(0, 256, (rows, blocks * width), dtype=np.uint8)
            try:
                with np.errstate(all="ignore"):
                    if kind.name == "Q1_0":
                        values = q1_0(data)
                    else:
                        values = gguf.quants.dequantize(data, kind)
            except NotImplementedError:
                values = None
            if values is None or np.isfinite(values).all():
                break
        writer.add_tensor(name, data, raw_dtype=kind)
        if values is not None:
            expected[name] = ("F32", values.shape, values.astype("<f4").tobytes())
    finish(writer)
    write_expected(folder / "quantised.safetensors", expected)


def split_files(folder):
    """A model of three files, of which the first has the keys and no tensor."""
    writer = gguf.GGUFWriter(folder / "split.gguf", "llama", split_max_tensors=2,
                             small_first_shard=True)
    writer.add_string("general.name", "a split model")
    expected = {}
    for number in range(3):
        values = np.arange(4, dtype=np.float32) + number
        writer.add_tensor(f"blk.{number}.weight", values)
        expected[f"blk.{number}.weight"] = ("F32", values.shape, values.tobytes())
    finish(writer)
    write_expected(folder / "split.safetensors", expected)


def grids(path):
    """Writes the tables of the IQ types: all rows, of two bytes each."""
    quants = gguf.quants
    kinds = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"]
    rows = (getattr(quants, kind).grid_hex.decode() for kind in kinds)
    path.write_bytes(b"".join(bytes.fromhex(text) for text in rows))


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder = Path(sys.argv[1])
    pytorch(folder / "pytorch")
    gguf_files(folder / "gguf")
    grids(folder.parent.parent / "src/gguf/dequantize/grids.bin")
    for path in sorted(folder.glob("pytorch/**/*")) + sorted(folder.glob("gguf/*")):
        if path.is_file():
            print(f"{path.stat().st_size:8}  {path.relative_to(folder)}")


if __name__ == "__main__":
    main()
