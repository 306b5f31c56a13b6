#!/usr/bin/env python3
"""Checks the `safetensors` command and the ndarray adapter against the `safetensors` library from
PyPI, both ways.

Run by hand, as CI has no Python:

    python3 -m venv venv
    venv/bin/pip install 'safetensors>=0.8' numpy ml_dtypes
    cargo build -p safetensors-bridge-cli
    venv/bin/python dev/scripts/python_interop.py target/debug/safetensors

Also what burn's training loop saves, if there is an epoch of it:

    cargo run -p model-examples --example burn_train -- run/
    venv/bin/python dev/scripts/python_interop.py target/debug/safetensors run/checkpoints/epoch-16

What Python writes, the command verifies, describes, copies, splits, edits and casts; what the
command writes, Python reads. All dtypes are covered that NumPy and ml_dtypes have. Casts are
compared with those of ml_dtypes.

The test program `python` of `safetensors-ndarray` writes arrays of every memory layout, and arrays
that grew step by step, for Python to read. It also turns an .npz of Python into a safetensors file.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

# Each dtype of the format with its NumPy type. Packed types are one element a byte in NumPy.
DTYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F4": ml_dtypes.float4_e2m1fn,
    "F6_E2M3": ml_dtypes.float6_e2m3fn,
    "F6_E3M2": ml_dtypes.float6_e3m2fn,
}
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

# Those that the Python library reads, and that it has no name for when it writes.
ONLY_READ = ["F6_E2M3", "F6_E3M2"]

# What the command casts to, and ml_dtypes too.
CASTS = ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]

checks = 0


def check(condition, what):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"FAILED: {what}")


def array(name, shape):
    """Values of a dtype: every bit pattern where a byte holds one, else a wide spread."""
    rng = np.random.default_rng(len(name) * 31 + math.prod(shape))
    dtype = np.dtype(DTYPES[name])
    size = math.prod(shape)
    if name == "BOOL":
        return rng.integers(0, 2, size).astype(np.bool_).reshape(shape)
    codes = 1 << BITS.get(name, 8)
    if dtype.itemsize == 1:
        values = (np.arange(size) % codes).astype(np.uint8)
        return values.view(dtype).reshape(shape)
    data = rng.bytes(size * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


def to_bytes(name, values):
    """The bytes of a tensor in a file."""
    if name not in BITS:
        return values.tobytes()
    width = BITS[name]
    codes = values.reshape(-1).view(np.uint8)
    bits = (codes[:, None] >> np.arange(width)) & 1
    return np.packbits(bits.reshape(-1).astype(np.uint8), bitorder="little").tobytes()


def from_bytes(name, shape, data):
    dtype = np.dtype(DTYPES[name])
    if name not in BITS:
        return np.frombuffer(bytes(data), dtype).reshape(shape)
    bits = np.unpackbits(np.frombuffer(bytes(data), np.uint8), bitorder="little")
    bits = bits.reshape(-1, BITS[name])
    codes = (bits << np.arange(BITS[name])).sum(axis=1).astype(np.uint8)
    return codes.view(dtype).reshape(shape)


def same(a, b):
    """Whether two arrays are equal bit by bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def run(*arguments):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    check(done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def read(path):
    """A file as the Python library reads it: each tensor as dtype name and array."""
    found = safetensors.deserialize(Path(path).read_bytes())
    return {
        name: (tensor["dtype"], from_bytes(tensor["dtype"], tensor["shape"], tensor["data"]))
        for name, tensor in found
    }


def write(path, tensors, metadata):
    """A file as the Python library writes it."""
    kept, specs = [], {}
    for name, (dtype, values) in tensors.items():
        shape, spelled = list(values.shape), np.dtype(DTYPES[dtype]).name
        if dtype == "F4":
            # The library counts bytes in the last dimension, as PyTorch does.
            shape[-1] //= 2
            spelled = "float4_e2m1fn_x2"
        data = np.frombuffer(to_bytes(dtype, values), np.uint8).copy()
        kept.append(data)
        specs[name] = safetensors.TensorSpec(
            dtype=spelled, shape=shape, data_ptr=data.ctypes.data, data_len=data.nbytes
        )
    Path(path).write_bytes(safetensors.serialize(specs, metadata))


def write_by_hand(path, tensors, metadata):
    """The same for dtypes that the library cannot write."""
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, values) in tensors.items():
        end = len(data) + len(to_bytes(dtype, values))
        offsets = [len(data), end]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += to_bytes(dtype, values)
    text = json.dumps(header).encode()
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def all_agree(path, tensors, what):
    found = read(path)
    check(set(found) == set(tensors), f"{what}: names {sorted(found)}")
    for name, (dtype, values) in tensors.items():
        check(found[name][0] == dtype, f"{what}: {name} is {found[name][0]}")
        check(same(found[name][1], values), f"{what}: {name} has other values")


def what_python_wrote(directory, tensors, metadata, path):
    """The command understands the file, and Python reads the command's output."""
    run("verify", path)
    document = json.loads(run("inspect", "--json", path))
    check(document["metadata"] == metadata, "inspect: metadata")
    shown = {t["name"]: (t["dtype"], t["shape"]) for t in document["tensors"]}
    told = {name: (dtype, list(v.shape)) for name, (dtype, v) in tensors.items()}
    check(shown == told, f"inspect: {shown}, expected {told}")

    copy = directory / "copy.safetensors"
    run("convert", path, copy)
    all_agree(copy, tensors, "a copy")

    run("convert", path, directory / "shards", "--max-shard-size", "200")
    index = json.loads((directory / "shards/model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    check(len(files) > 2, "several shards")
    joined = {}
    for file in files:
        for name, tensor in read(directory / "shards" / file).items():
            check(index["weight_map"][name] == file, f"{name} is in {file}")
            joined[name] = tensor
    check(set(joined) == set(tensors), "the shards have all tensors")
    check(all(same(joined[n][1], tensors[n][1]) for n in tensors), "the shards have all values")

    for entries in (["title=a short one"], ["note=" + "x" * 5000, "ключ=значение"]):
        run("metadata", "set", copy, *entries)
        all_agree(copy, tensors, "an edited file")
        with safetensors.safe_open(copy, "np") as file:
            for key, value in (entry.split("=", 1) for entry in entries):
                check(file.metadata()[key] == value, f"metadata {key}")
    run("digest", "--record", copy)
    all_agree(copy, tensors, "a file with digests")
    run("verify", copy)


def numpy_files(directory):
    """Arrays by NumPy's own format, and by the library's NumPy functions."""
    types = safetensors.numpy._TYPES
    arrays = {name: array(name, (3, 4)) for name in DTYPES if name in types}
    np.savez(directory / "arrays.npz", **arrays)
    run("convert", directory / "arrays.npz", directory / "arrays.safetensors")
    loaded = safetensors.numpy.load_file(directory / "arrays.safetensors")
    check(set(loaded) == set(arrays), "arrays of an .npz")
    check(all(same(loaded[n], arrays[n]) for n in arrays), "values of an .npz")

    safetensors.numpy.save_file(arrays, directory / "saved.safetensors")
    run("convert", directory / "saved.safetensors", directory / "back.npz")
    with np.load(directory / "back.npz") as back:
        check(set(back) == set(arrays), "arrays written to an .npz")
        check(all(same(back[n], arrays[n]) for n in arrays), "values written to an .npz")


def casts(directory, sources):
    """Floats cast to each dtype, as ml_dtypes does it."""
    floats = {n: t for n, t in sources.items() if np.dtype(DTYPES[t[0]]).kind in "fV"}
    path = directory / "floats.safetensors"
    write_by_hand(path, floats, {})
    for target in CASTS:
        out = directory / f"{target}.safetensors"
        run("convert", path, out, "--dtype", target.lower())
        for name, (dtype, values) in read(out).items():
            source, old = floats[name]
            check(dtype == target, f"{name} cast to {target} is {dtype}")
            with np.errstate(all="ignore"):
                expected = cast(old, source, target)
            nan = np.isnan(values.astype(np.float64))
            check(np.array_equal(nan, np.isnan(expected.astype(np.float64))), f"{name} {target}")
            keep = ~nan
            check(same(values[keep], expected[keep]), f"{name} cast to {target}")


def cast(values, source, target):
    """ml_dtypes rounds once if the way is direct, and from F64 in one step."""
    if source == target:
        return values
    return values.astype(np.float64).astype(DTYPES[target])


def ndarray_adapter(directory):
    """What the ndarray adapter writes, read here, and an .npz from here, read there."""
    root = Path(__file__).resolve().parents[2]
    source = root / "safetensors-ndarray/tests/fixtures/generate.py"
    spec = importlib.util.spec_from_file_location("generate", source)
    fixture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixture)
    by_numpy = set(safetensors.numpy._TYPES) - {"BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ"}
    plain = {n: fixture.array(n) for n in fixture.DTYPES if n in by_numpy}
    u = fixture.u()
    np.savez(directory / "python.npz", **plain, fortran=np.asfortranarray(u), big=u.astype(">f8"))

    cargo = "cargo test --quiet -p safetensors-ndarray --features npz --test it python".split()
    environment = os.environ | {"SAFETENSORS_INTEROP_DIR": str(directory)}
    done = subprocess.run(cargo, cwd=root, env=environment, capture_output=True, text=True)
    check(done.returncode == 0, f"{' '.join(cargo)}: {done.stdout}{done.stderr}")

    expected = fixture.arrays() | {f"grown {axis}": u for axis in range(3)}
    expected |= {
        "fortran": u,
        "transposed": u.T,
        "reversed": u[::-1, :, ::-1],
        "strided": u[:, ::2, ::3],
        "broadcast": np.broadcast_to(u, (2, 3, 4, 5)),
    }
    path = directory / "written.safetensors"
    found = {name: values for name, (_, values) in read(path).items()}
    check(set(found) == set(expected), f"ndarray: names {sorted(found)}")
    for name, values in expected.items():
        in_order = np.ascontiguousarray(values).reshape(values.shape)
        check(same(found[name], in_order), f"ndarray: {name}")
    with safetensors.safe_open(path, "np") as file:
        check(file.metadata() == fixture.METADATA, f"ndarray: metadata {file.metadata()}")
    run("verify", path)

    with np.load(directory / "written.npz") as archive:
        check(set(archive) == set(plain), f"ndarray: arrays of an .npz {sorted(archive)}")
        check(all(same(archive[n], plain[n]) for n in plain), "ndarray: values of an .npz")
    with np.load(directory / "u.npz") as archive:
        check(same(archive["u"], u), "ndarray: a stored .npz")
    check(same(np.load(directory / "written.npy"), u), "ndarray: an .npy")
    from_npz = safetensors.numpy.load_file(directory / "from-npz.safetensors")
    for name, values in (plain | {"fortran": u, "big": u}).items():
        check(same(from_npz[name], values), f"ndarray: {name} of an .npz of NumPy")


def epoch_of_burn(directory):
    """What burn's training loop has saved: readable names, ids that agree, typed scalars."""

    def load(name):
        path = directory / f"{name}.safetensors"
        with safetensors.safe_open(path, framework="np") as file:
            metadata = file.metadata()
        entry = lambda key: json.loads(metadata.get(f"safetensors_bridge.{key}", "{}"))
        return safetensors.numpy.load_file(path), entry

    manifest = json.loads((directory / "manifest.json").read_text())
    model, of_model = load("model")
    optimizer, of_optimizer = load("optimizer")
    _, of_scheduler = load("scheduler")
    check(directory.name == f"epoch-{manifest['epoch']}", "the number of the epoch")
    check(manifest["files"]["model.safetensors"]["tensors"] == len(model), "the number of tensors")
    check(sorted(of_model("param_ids")) == sorted(model), "each parameter has an id")
    check(of_optimizer("path_ids") == of_model("param_ids"), "both files have the same ids")
    for name, values in model.items():
        for moment in (1, 2):
            found = optimizer.pop(f"{name}.momentum.moment_{moment}")
            check(found.shape == values.shape and np.isfinite(found).all(), f"moment of {name}")
        check(of_optimizer("scalars")[f"{name}.momentum.time"]["u64"] > 0, f"time of {name}")
    check(not optimizer, "the optimizer has nothing else")
    check(of_scheduler("scalars"), "the scheduler has numbers")


def main():
    names = [name for name in DTYPES if name not in ONLY_READ]
    tensors = {f"t {name}": (name, array(name, (4, 24))) for name in names}
    tensors |= {f"empty {name}": (name, array(name, (2, 0, 4))) for name in names}
    tensors |= {f"0 {n}": (n, array(n, ())) for n in names if n not in BITS}
    metadata = {"format": "np", "quote\"": "line\nend \u00e9 \U0001f600"}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        path = directory / "python.safetensors"
        write(path, tensors, metadata)
        what_python_wrote(directory, tensors, metadata, path)

        everything = {f"t {name}": (name, array(name, (4, 24))) for name in DTYPES}
        (directory / "more").mkdir()
        path = directory / "more/all.safetensors"
        write_by_hand(path, everything, metadata)
        what_python_wrote(directory / "more", everything, metadata, path)
        numpy_files(directory)
        casts(directory, everything)
        ndarray_adapter(directory)
    if EPOCH is not None:
        epoch_of_burn(EPOCH)
    print(f"{checks} checks passed: safetensors {safetensors.__version__}, NumPy {np.__version__}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    COMMAND = sys.argv[1]
    EPOCH = Path(sys.argv[2]) if len(sys.argv) == 3 else None
    main()
