#!/usr/bin/env python3
"""Reads labelled arrays with xarray, and the manifests of `safetensors manifest` with Zarr.

Run by hand, as CI has no Python:

    python3 -m venv venv
    venv/bin/pip install safetensors numpy xarray zarr fsspec
    cargo build -p safetensors-bridge-cli
    venv/bin/python dev/scripts/xarray_labels.py target/debug/safetensors

It writes files in Python, so that the text of the attributes is not that of our own writer. Every
value that Zarr reads is compared with what the package `safetensors` reads, and positions in the
manifest are compared with the bytes of the file.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import xarray
import zarr

PAGE = Path(__file__).resolve().parents[2] / "docs" / "labels.md"
# The function comes from the page, so that the page is right.
exec(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S).group(1))

COMMAND = sys.argv[1]


def main():
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        path, tensors = write_labelled(directory)
        check_function(path, tensors)
        check_manifest(directory, path, tensors)
        check_dtypes(directory)
        check_shards(directory)
    print("xarray and Zarr read what was written")


def write_labelled(directory):
    # A text in double braces is not replaced, as the manifest has no templates.
    path = directory / "{{u}} wind.safetensors"
    rng = np.random.default_rng(1)
    tensors = {
        "t": np.linspace(0.0, 4.5, 10),
        "y": np.array([30, 20, 10, 0], dtype=np.int64),
        "u": rng.random((10, 4, 6)).astype(np.float32),
        "grid/x": np.arange(6, dtype=np.float32),
        "energy": np.array(1.5),
        "none": np.zeros((0, 3), dtype=np.int16),
    }
    metadata = {
        "title": "wind over the ridge",
        "attribute:u#dimensions": json.dumps(["t", "y", "grid/x"]),
        "attribute:u#units": "m/s",
        "attribute:t#units": "s",
    }
    safetensors.numpy.save_file(tensors, path, metadata)
    return path, tensors


def check_function(path, tensors):
    u = open_labelled(path, "u")
    assert u.dims == ("t", "y", "grid/x") and u.attrs == {"units": "m/s"}, u
    assert u.coords["t"].attrs == {"units": "s"}
    np.testing.assert_array_equal(u.sel(t=slice(0, 1.5)).values, tensors["u"][:4])
    np.testing.assert_array_equal(u.sel(y=slice(30, 20)).values, tensors["u"][:, :2])
    assert open_labelled(path, "none").dims == ("none.dim0", "none.dim1")


def manifest(path, *options):
    out = Path(tempfile.mkdtemp(dir=path if path.is_dir() else path.parent)) / "out.json"
    command = [COMMAND, "manifest", path, "-o", out, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def group(out):
    """The manifest as a store of Zarr, by fsspec's ReferenceFileSystem."""
    options = {"fo": str(out), "remote_protocol": "file"}
    return zarr.open_group("reference://", storage_options=options, mode="r", zarr_format=2)


def check_manifest(directory, path, tensors):
    for arguments, expected in [((), 1), (("--chunk", "500"), 2), (("--chunk", "1"), 10)]:
        out = manifest(path, *arguments)
        opened = group(out)
        assert opened.attrs["title"] == "wind over the ridge"
        for name, values in tensors.items():
            array = opened[name]
            np.testing.assert_array_equal(array[...], values)
            assert (array.shape, array.dtype) == (values.shape, values.dtype), name
        data = path.read_bytes()
        refs = json.loads(out.read_text())["refs"]
        chunks = [ref for key, ref in refs.items() if re.match(r"u/\d", key)]
        assert all(Path(file) == path for file, _, _ in chunks)
        assert len(chunks) == expected, (len(chunks), expected)
        # The text of the keys sorts them otherwise from ten chunks on.
        chunks.sort(key=lambda chunk: chunk[1])
        joined = b"".join(data[offset : offset + length] for _, offset, length in chunks)
        assert joined == tensors["u"].tobytes()
        options = {"fo": str(out), "remote_protocol": "file"}
        backend = {"consolidated": False, "storage_options": options}
        dataset = xarray.open_dataset("reference://", engine="zarr", backend_kwargs=backend)
        assert dataset["u"].dims == ("t", "y", "grid/x") and dataset["u"].attrs["units"] == "m/s"
        part = dataset["u"].sel(t=slice(0, 1.5), y=slice(30, 20))
        np.testing.assert_array_equal(part.values, tensors["u"][:4, :2])


def check_dtypes(directory):
    """Dtypes that NumPy lacks are integers of the same bits, and packed ones are bytes."""
    path = directory / "dtypes.safetensors"
    shapes = {
        "BF16": ([3], 6),
        "F8_E4M3": ([2, 2], 4),
        "F4": ([2, 3], 3),
        "BOOL": ([4], 4),
        "C64": ([1], 8),
    }
    header, data = {}, b""
    for dtype, (shape, length) in shapes.items():
        place = [len(data), len(data) + length]
        header[dtype] = {"dtype": dtype, "shape": shape, "data_offsets": place}
        data += bytes(i % 2 for i in range(length))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    opened = group(manifest(path))
    for dtype, (shape, length) in shapes.items():
        array = opened[dtype]
        begin, end = header[dtype]["data_offsets"]
        assert array[...].tobytes() == data[begin:end], dtype
        if dtype in ("BOOL", "C64"):
            assert "safetensors_dtype" not in array.attrs
        else:
            assert array.attrs["safetensors_dtype"] == dtype
    assert opened["BF16"].dtype == np.dtype("<u2") and opened["F4"].shape == (3,)
    assert opened["F4"].attrs["safetensors_shape"] == [2, 3]


def check_shards(directory):
    shards = directory / "shards"
    shards.mkdir()
    tensors = {f"layers.{i}.weight": np.full((4, 2), i, dtype=np.float16) for i in range(4)}
    names = {}
    for i, (name, values) in enumerate(tensors.items()):
        file = f"model-{i + 1:05}-of-00004.safetensors"
        safetensors.numpy.save_file({name: values}, shards / file)
        names[name] = file
    index = {"metadata": {"total_size": 64}, "weight_map": names}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    opened = group(manifest(shards))
    for name, values in tensors.items():
        np.testing.assert_array_equal(opened[name][...], values)


if __name__ == "__main__":
    main()
