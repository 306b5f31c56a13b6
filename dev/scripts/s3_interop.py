#!/usr/bin/env python3
"""Checks remote checkpoints against a server of S3, and the objects that they leave there.

Run by hand, as CI has no Python:

    python3 -m venv venv
    venv/bin/pip install 'moto[server]' boto3
    venv/bin/python dev/scripts/s3_interop.py           # against moto
    venv/bin/python dev/scripts/s3_interop.py s3s-fs    # against s3s-fs, built into a temporary folder

Starts the server on the loopback, uploads a file with boto3, runs the ignored tests of
`extras/hub/tests/it/remote/buckets.rs`, and then looks at the bucket: which objects there are,
that each is a whole file, that no upload was left unfinished. The program s3s-fs is taken from PATH
if it is there.
"""

import contextlib

import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import boto3

KEY, SECRET = "AKIATESTING", "very-secret-key"
BUCKET = "bucket"
ROOT = Path(__file__).resolve().parents[2]


def file_of(name: str, dtype: str, shape: list[int], data: bytes) -> bytes:
    """The bytes of a file with one tensor."""
    tensor = {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}
    header = json.dumps({name: tensor}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def names_in(data: bytes) -> set[str]:
    """The names of the tensors of a file, which must be complete."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    assert len(data) == 8 + length + end, f"expected {8 + length + end} bytes, found {len(data)}"
    return set(header)


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """The address of a server of moto."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextlib.contextmanager
def s3s_fs() -> Iterator[str]:
    """The address of a server of s3s-fs."""
    with tempfile.TemporaryDirectory() as temporary:
        program = shutil.which("s3s-fs")
        if program is None:
            install = ["cargo", "install", "s3s-fs", "--version", "0.14.1", "--features", "binary"]
            subprocess.run([*install, "--debug", "--root", temporary], check=True)
            program = f"{temporary}/bin/s3s-fs"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        files = Path(temporary, "files")
        files.mkdir()
        keys = ["--access-key", KEY, "--secret-key", SECRET]
        place = ["--host", "127.0.0.1", "--port", str(port), str(files)]
        server = subprocess.Popen([program, *keys, *place])
        try:
            for _ in range(300):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


SERVERS = {"moto": moto, "s3s-fs": s3s_fs}


def main() -> None:
    server = sys.argv[1] if len(sys.argv) > 1 else "moto"
    with SERVERS[server]() as endpoint:
        check(endpoint, server)
    print("all is well")


def check(endpoint: str, server: str) -> None:
    s3 = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    s3.create_bucket(Bucket=BUCKET)
    count = 1 << 20
    values = struct.pack(f"<{count}i", *range(count))
    uploaded = file_of("values", "I32", [count], values)
    s3.put_object(Bucket=BUCKET, Key="python/model.safetensors", Body=uploaded)

    command = "cargo test -p safetensors-hub --features remote --test it -- --ignored remote::buckets"
    environment = os.environ | {"SAFETENSORS_S3_ENDPOINT": endpoint}
    if server == "s3s-fs":
        environment["SAFETENSORS_S3_MAKES_BUCKETS"] = "1"
    tests = subprocess.run(command.split(), cwd=ROOT, env=environment)
    if tests.returncode != 0:
        sys.exit(tests.returncode)

    if server != "s3s-fs":  # which does not list them
        unfinished = s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        assert not unfinished, f"unfinished uploads: {unfinished}"
    listed = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    keys = sorted(entry["Key"] for entry in listed)
    print("objects:", *keys, sep="\n  ")
    assert not [key for key in keys if key.startswith("failed/")], keys
    read = lambda key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()  # noqa: E731

    # The last of the sharded checkpoints, and nothing of the earlier ones.
    sharded = [key for key in keys if key.startswith("rust/sharded/")]
    index = json.loads(read("rust/sharded/model.safetensors.index.json"))
    files = {f"rust/sharded/{file}" for file in index["weight_map"].values()}
    assert set(sharded) == files | {"rust/sharded/model.safetensors.index.json"}, sharded
    assert set(index["weight_map"]) == {"round4", "y", "z"}
    for tensor, file in index["weight_map"].items():
        assert tensor in names_in(read(f"rust/sharded/{file}"))
    # The names of objects equal the names in the index, with every character.
    named = {key.removeprefix("rust/named/") for key in keys if key.startswith("rust/named/")}
    index = "mödel ~#%[1]{x}%20.safetensors.index.json"
    shards = set(json.loads(read(f"rust/named/{index}"))["weight_map"].values())
    assert named == shards | {index}, named
    assert names_in(read("rust/one.safetensors")) == {"a", "b"}
    assert names_in(read("rust/small.safetensors")) == {"a", "b"}


if __name__ == "__main__":
    main()
