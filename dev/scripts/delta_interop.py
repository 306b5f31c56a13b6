#!/usr/bin/env python3
"""Deltas between this project's command and ModelExpress, in both directions; and slime's format.

Run by hand, as CI has no Python:

    python3 -m venv venv
    venv/bin/pip install modelexpress==0.7.0 torch numpy safetensors zstandard xxhash blake3
    venv/bin/python dev/scripts/delta_interop.py target/debug/safetensors

Checkpoints of random weights change from step to step. ModelExpress publishes them with its own
class, to a store in memory in place of S3, and the command applies what it published. The command
makes deltas, and ModelExpress's receiver applies them, one and a chain of them. The result is the
new checkpoint, bit for bit. What ModelExpress does not read (the encoding `overwrite`, XXH3-128 and
BLAKE3) is decoded here with zstandard, xxhash and blake3, as slime's reader does it. Deltas of other
tensors, which only the command reads, are refused by ModelExpress. With a second argument, a number
of MiB, making and applying are timed beside ModelExpress.
"""

import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import blake3
import numpy as np
import torch
import torch.distributed as dist
import xxhash
import zstandard
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modelexpress_rl.inference import receiver
from modelexpress_rl.inference.checkpoint_store import CheckpointState
from modelexpress_rl.object_storage import ObjectStorageType
from modelexpress_rl.train import WeightPayloadFormat
from modelexpress_rl.train.methods import canonical_delta
from modelexpress_rl.utils import (checksum_factory, compress_delta, compute_delta,
                                   make_tensor_reader)

COMMAND = Path(sys.argv[1]).resolve()
INDEX = "model.safetensors.index.json"
PREFIX = "s3://bucket/run"
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int32]


class MemoryS3:
    """What ModelExpress needs of S3."""

    def __init__(self):
        self.objects = {}

    def put(self, *, uri, data):
        data = bytes(data)
        assert self.objects.setdefault(uri, data) == data

    def get(self, uri):
        return self.objects[uri]

    def size(self, uri):
        return len(self.objects[uri])

    def close(self):
        pass

    def upload(self, version, directory):
        """Puts a delta of the command there, and returns its version."""
        for file in directory.iterdir():
            self.put(uri=f"{PREFIX}/{version}/{file.name}", data=file.read_bytes())

    def download(self, version, directory):
        """Writes a delta of ModelExpress to a directory."""
        directory.mkdir(parents=True)
        for uri, data in self.objects.items():
            place, name = uri.rsplit("/", 1)
            if place == f"{PREFIX}/{version}":
                (directory / name).write_bytes(data)


def run(*arguments, fails=False):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def step(number, tensors=None, part=0.03):
    """Random weights, or others of which so many elements have changed."""
    generator = torch.Generator().manual_seed(number)
    if tensors is None:
        shapes = [(64, 48), (31,), (7, 5, 3), ()]
        names = [f"layers.{i}.{j}" for i in range(5) for j in range(len(shapes))]
        made = (torch.randn(shapes[i % 4], generator=generator) * 9 for i in range(len(names)))
        return {n: t.to(DTYPES[i % len(DTYPES)]) for i, (n, t) in enumerate(zip(names, made))}
    changed = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        new = tensor.clone().reshape(-1)
        count = 0 if i % 3 == 2 else max(1, int(new.numel() * part))
        at = torch.randperm(new.numel(), generator=generator)[:count]
        new.view(torch.uint8).reshape(new.numel(), -1)[at, 0] ^= 1 + number % 7
        changed[name] = new.reshape(tensor.shape)
    return changed


def write(directory, tensors, shards=1):
    """Saves a checkpoint, in so many files."""
    directory.mkdir(parents=True)
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    else:
        weight_map = {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = {name: tensors[name] for name in names[i::shards]}
            save_file(part, directory / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index))
    (directory / "config.json").write_text('{"model_type": "none"}')


def read(directory):
    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        a, b = one[name], other[name]
        assert a.dtype == b.dtype and a.shape == b.shape, name
        assert raw(a) == raw(b), name


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def publisher(s3, seed, versions):
    """ModelExpress's own publication, of one rank."""
    found = lambda uid: SimpleNamespace(
        model_name="m", payload_format=canonical_delta.refit_pb2.WEIGHT_PAYLOAD_FORMAT_XOR_DELTA,
        base_version_id=versions[uid], HasField=lambda _: True,
        object_storage=SimpleNamespace(
            storage_type=canonical_delta.refit_pb2.OBJECT_STORAGE_TYPE_S3,
            uri=f"{PREFIX}/{uid}/{INDEX}"))
    service = SimpleNamespace(GetWeightVersion=lambda request, timeout: SimpleNamespace(
        HasField=lambda _: True, version=found(request.uid)))
    reader, _ = make_tensor_reader(seed)
    return canonical_delta.CanonicalDeltaPublicationMethod(
        config=SimpleNamespace(initial_base_version_id="000000", uri_prefix=PREFIX),
        model_name="m", service=lambda: service, rpc_timeout_seconds=1,
        process_group=dist.group.WORLD, read_seed_tensor=reader, s3=s3)


def receive(s3, seed, cache, chain):
    """ModelExpress's own receiver: applies the versions, each with its base."""
    config = receiver.ObjectStorageGeneratorConfig(
        storage_type=ObjectStorageType.S3, initial_base_version_id="000000",
        seed_checkpoint_path=seed, refit_checkpoint_dir=cache)
    local = receiver._LocalCheckpoint(model_name="m", config=config, s3=s3)
    local.initialize()
    versions = tuple(receiver._S3Version(
        version_id=version, base_version_id=base, payload_format=WeightPayloadFormat.XOR_DELTA,
        uri=f"{PREFIX}/{version}/{INDEX}") for base, version in chain)
    prepared = local.prepare_chain(versions)
    assert local.store.state().status is CheckpointState.READY
    return prepared.path


def as_slime(delta, base):
    """What slime's reader makes of a delta: every file of the directory, by its formats."""
    index = json.loads((delta / INDEX).read_text())
    metadata = index["metadata"]
    int(metadata["version"]), int(metadata["base_version"])
    hashes = {"xxh3-128": xxhash.xxh3_128, "blake3": blake3.blake3}
    new = {name: bytearray(raw(tensor)) for name, tensor in base.items()}
    seen = set()
    for file in sorted(delta.glob("*.safetensors")):
        with safe_open(file, "np") as shard:
            checksums = shard.metadata()
            assert checksums.keys() == set(shard.keys()), "checksums and nothing else"
            for name in shard.keys():
                frame = shard.get_tensor(name).tobytes()
                size = zstandard.frame_content_size(frame)
                data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
                assert len(data) == size > 0
                target = np.frombuffer(new[name], np.uint8)
                if metadata["delta_encoding"] == "xor":
                    target ^= np.frombuffer(data, np.uint8)
                else:
                    count, = struct.unpack("<I", data[:4])
                    positions = np.frombuffer(data, "<u4", count, 4)
                    target[positions] = np.frombuffer(data, np.uint8, count, 4 + 4 * count)
                if metadata["checksum_format"] == "adler32":
                    checksum = checksum_factory("adler32")
                    checksum.update(target)
                else:
                    checksum = hashes[metadata["checksum_format"]](bytes(target))
                assert checksum.hexdigest() == checksums[name], name
                assert index["weight_map"][name] == file.name
                seen.add(name)
    assert seen == set(index["weight_map"])
    return {name: bytes(data) for name, data in new.items()}


def theirs_by_us(scratch, steps):
    s3 = MemoryS3()
    versions = {f"{n:06}": f"{n - 1:06}" for n in range(1, len(steps))}
    method = publisher(s3, scratch / "s0", versions)
    method.prepare_base(hf_tensor_iter=[list(steps[0].items())])
    for number, tensors in enumerate(steps[1:], 1):
        version = SimpleNamespace(version_id=f"{number:06}")
        method.publish(version=version, staged=method.stage(
            version=version, hf_tensor_iter=[list(tensors.items())]))
        s3.download(version.version_id, scratch / "theirs" / version.version_id)
    deltas = sorted((scratch / "theirs").iterdir())
    for number, delta in enumerate(deltas, 1):
        assert "a delta from" in run("delta", "verify", delta)
        base = scratch / f"s{number - 1}"
        told = run("delta", "apply", base, delta, scratch / "applied", "--force")
        assert "names no digest of its base" in told
        same(read(scratch / "applied"), steps[number])
        # They publish an index with an empty weight_map if nothing has changed.
    run("delta", "apply", scratch / "s0", *reversed(deltas), scratch / "applied", "--force")
    same(read(scratch / "applied"), steps[-1])
    print(f"ModelExpress published {len(deltas)} deltas, and ours applies them alone and together")


def ours_by_them(scratch, steps):
    s3, chain = MemoryS3(), []
    for number in range(1, len(steps)):
        base, version = f"{number - 1:06}", f"{number:06}"
        delta = scratch / "ours" / f"weight_v{version}"
        delta.parent.mkdir(exist_ok=True)
        run("delta", "make", scratch / f"s{number - 1}", scratch / f"s{number}", delta,
            "--for", "modelexpress")
        s3.upload(version, delta)
        chain.append((base, version))
        path = receive(s3, scratch / "s0", scratch / f"cache{number}", chain)
        same(read(path), steps[number])
    squashed = scratch / "ours" / "squashed"
    run("delta", "squash", scratch / "s0", *sorted((scratch / "ours").iterdir()), squashed,
        "--for", "modelexpress")
    index = json.loads((squashed / INDEX).read_text())["metadata"]
    assert (index["base_version"], index["version"]) == ("000000", f"{len(steps) - 1:06}")
    s3 = MemoryS3()
    s3.upload(index["version"], squashed)
    path = receive(s3, scratch / "s0", scratch / "cache-squashed", [("000000", index["version"])])
    same(read(path), steps[-1])
    print(f"ours made {len(chain)} deltas and one of all, and ModelExpress applies each chain")


def ours_by_slime(scratch, steps):
    count = 0
    for encoding in ["xor", "overwrite"]:
        for checksums in ["xxh3-128", "blake3", "adler32"]:
            delta = scratch / "slime" / f"{encoding}-{checksums}"
            delta.parent.mkdir(exist_ok=True)
            run("delta", "make", scratch / "s0", scratch / "s1", delta, "--for", "slime",
                "--encoding", encoding, "--checksums", checksums)
            found = as_slime(delta, steps[0])
            assert found == {name: raw(tensor) for name, tensor in steps[1].items()}
            count += 1
    print(f"{count} deltas of ours are what slime's reader expects")


def refused_by_them(scratch, steps):
    """A delta of other tensors, of another shape and of other metadata: no other program makes a
    wrong checkpoint of it."""
    name = next(iter(steps[0]))
    reshaped = {**steps[0], name: steps[0][name].reshape(-1)}
    added = {**steps[0], "added": torch.ones(3)}
    removed = {key: tensor for key, tensor in steps[0].items() if key != name}
    for number, tensors in enumerate([reshaped, added, removed]):
        write(scratch / f"other{number}", tensors)
        for encoding in ["xor", "overwrite"]:
            delta = scratch / "refused" / f"{number}-{encoding}"
            delta.parent.mkdir(exist_ok=True)
            arguments = [scratch / "s0", scratch / f"other{number}", delta, "--encoding", encoding,
                         "--to-version", "000001"]
            run("delta", "make", *arguments, "--for", "slime", fails=True)
            run("delta", "make", *arguments, "--checksums", "adler32")
            run("delta", "apply", scratch / "s0", delta, scratch / "applied", "--force")
            same(read(scratch / "applied"), tensors)
            word = json.loads((delta / INDEX).read_text())["metadata"]["delta_encoding"]
            assert word not in ("xor", "overwrite"), word
            s3 = MemoryS3()
            s3.upload("000001", delta)
            cache = scratch / f"refused-{number}-{encoding}"
            try:
                receive(s3, scratch / "s0", cache, [("000000", "000001")])
            except Exception as error:
                assert "encoding" in str(error), error
            else:
                raise AssertionError("ModelExpress takes what it cannot read")
    print("ModelExpress refuses deltas of ours with other tensors")


def timed(work):
    os.sync()
    start = time.perf_counter()
    done = work()
    return done, time.perf_counter() - start


def synced(directory):
    for file in directory.rglob("*.safetensors"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())


def times(scratch, mib):
    print(f"{mib} MiB of BF16, {os.cpu_count()} CPUs; seconds, and the size of the delta in MiB")
    generator = torch.Generator().manual_seed(1)
    elements = mib * (1 << 20) // 2 // 16
    old = {f"w{i:02}": (torch.randn(elements, generator=generator) * 0.02).bfloat16()
           for i in range(16)}
    write(scratch / "old", old)
    for percent in [1, 3, 30]:
        new = {}
        for name, tensor in old.items():
            bits = tensor.clone().view(torch.int16)
            changed = torch.rand(elements, generator=generator) * 100 < percent
            bits[changed] += torch.randint(1, 3, (int(changed.sum()),), generator=generator).short()
            new[name] = bits.view(torch.bfloat16)
        write(scratch / "new", new)
        reader, _ = make_tensor_reader(scratch / "old")
        s3 = MemoryS3()
        method = publisher(s3, scratch / "old", {"000001": "000000"})
        buckets = [[item] for item in new.items()]
        method.prepare_base(hf_tensor_iter=buckets)
        version = SimpleNamespace(version_id="000001")
        staged, stage = timed(lambda: method.stage(version=version, hf_tensor_iter=buckets))
        method.publish(version=version, staged=staged)
        theirs = sum(len(data) for data in s3.objects.values()) / 2**20
        del staged, method, s3
        frames = [compute_delta(np.frombuffer(raw(new[name]), np.uint8), reader(name))[0]
                  for name in new]
        with ThreadPoolExecutor() as pool:
            _, alone = timed(lambda: list(pool.map(compress_delta, frames)))
        del frames
        delta = scratch / "delta"
        _, make = timed(lambda: run("delta", "make", scratch / "old", scratch / "new", delta,
                                    "--force", "--for", "modelexpress"))
        ours = sum(file.stat().st_size for file in delta.iterdir()) / 2**20
        s3, cache = MemoryS3(), scratch / "cache"
        s3.upload("000001", delta)
        samples = []
        for _ in range(3):
            # Both into directories that are not there: none waits for an old result to be removed.
            _, apply = timed(lambda: run("delta", "apply", scratch / "old", delta, scratch / "out"))
            shutil.rmtree(scratch / "out")
            received, receipt = timed(lambda: receive(s3, scratch / "old", cache,
                                                      [("000000", "000001")]))
            # The command has its result on the disk when it ends.
            start = time.perf_counter()
            synced(received)
            durable = receipt + time.perf_counter() - start
            shutil.rmtree(cache)
            samples.append((apply, receipt, durable))
        apply, receipt, durable = map(statistics.median, zip(*samples))
        print(f"{percent:>3} %: size {ours:.1f}, theirs {theirs:.1f}, {ours / theirs:.4f} of it; "
              f"make {make:.2f}, theirs without reading and writing {stage:.2f}, zstd alone in "
              f"all threads {alone:.2f}; apply {apply:.2f}, theirs with the copy of the base "
              f"{receipt:.2f} and until it is on the disk {durable:.2f}")
        shutil.rmtree(scratch / "new")


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        dist.init_process_group("gloo", init_method=f"file://{scratch}/group", rank=0, world_size=1)
        if len(sys.argv) > 2:
            return times(scratch, int(sys.argv[2]))
        steps = [step(0)]
        for number in range(1, 6):
            # One of the steps changes nothing.
            steps.append(dict(steps[-1]) if number == 4 else step(number, steps[-1]))
        for number, tensors in enumerate(steps):
            write(scratch / f"s{number}", tensors, shards=1 + number % 3)
        theirs_by_us(scratch, steps)
        ours_by_them(scratch, steps)
        ours_by_slime(scratch, steps)
        refused_by_them(scratch, steps)


main()
