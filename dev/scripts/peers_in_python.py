#!/usr/bin/env python3
"""Measures reading and downloading against other programs, most in Python, in one run, by hand.

    pip install torch numpy huggingface_hub==2.4.0 safetensors==0.9.0rc1 \
        runai-model-streamer==0.17.0 runai-model-streamer-s3==0.17.0 'moto[server]' boto3
    dev/scripts/peers_in_python.py                        # every group
    dev/scripts/peers_in_python.py hub s3                 # some of them
    dev/scripts/peers_in_python.py --rounds 5 --dir /mnt/disk --mib 1024

Each sample is taken in a fresh process, in turns. Only the work is timed: not the start of the
process, nor imports, nor the check that all have read the same bytes. Ours is the program of
`cargo bench -p benches`, which this script builds. Everything stays on this machine: the Hub and
the bucket are servers on the loopback.

    files   all tensors of a safetensors file into memory, which is in the page cache
    cold    the same, from the disk
    torch   all tensors of a PyTorch archive, and one of them
    hub     downloads of the Hub, 20 ms away: one file, and four, for which huggingface_hub has
            several connections; a branch and a commit in its cache
    s3      all tensors of a file in a bucket
    zarr    an array and a part of it from the disk, beside zarrs (`dev/scripts/zarr_peer`, in Rust)

Two peers cannot be measured so: `safe_open.prefetch` of safetensors 0.9 loads to CUDA only, and
hf-fetch-model 0.12 asks no other server than huggingface.co.
"""

import argparse
import contextlib
import filecmp
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peer_servers import BUCKET, COMMIT, KEY, MODEL, REPO, SECRET

ROOT = Path(__file__).resolve().parents[2]
SERVERS = Path(__file__).with_name("peer_servers.py")


# What a peer does. Each returns names and arrays of NumPy, and is called after its imports.


def of_safetensors(path, backend):
    from safetensors.numpy import load_file

    return lambda: load_file(path, backend=backend)


def of_torch_tensors(tensors):
    """The bytes of tensors, where they are."""
    return {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}


def of_streamer(path):
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return of_torch_tensors(dict(streamer.get_tensors()))

    return load


def of_torch(path, mapped):
    import torch

    return lambda: of_torch_tensors(torch.load(path, mmap=mapped, weights_only=True))


def touched(load):
    """The same with every page of the memory brought in, which a map leaves for later."""

    def work():
        arrays = load()
        for array in arrays.values():
            array.reshape(-1).view("u1")[::4096].sum()
        return arrays

    return work


def first_of(load):
    """One tensor in separate memory."""
    return lambda: {name: array.copy() for name, array in list(load().items())[:1]}


def download(revision):
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    # The package imports most of itself at the first call.
    with contextlib.suppress(LocalEntryNotFoundError):
        snapshot_download("owner/nothing", local_files_only=True)
    return lambda: snapshot_download(REPO, revision=revision)


PEERS = {
    "pread": lambda what: of_safetensors(what, "pread"),
    "mmap": lambda what: touched(of_safetensors(what, "mmap")),
    "streamer": of_streamer,
    "torch-mmap": lambda what: touched(of_torch(what, True)),
    "torch": lambda what: of_torch(what, False),
    "torch-first": lambda what: first_of(of_torch(what, True)),
    "download": download,
}


def checksum(arrays):
    """The checksum of `dev/benches/src/files.rs`."""
    import numpy

    mask = (1 << 64) - 1

    def fletcher(data):
        words = data[: len(data) // 8 * 8].view("<u8")
        words = numpy.concatenate([words, data[len(words) * 8 :].astype("<u8")])
        weights = numpy.arange(len(words), 0, -1, dtype="<u8")
        total = (len(data) + int(words.sum(dtype="<u8"))) & mask
        sums = (len(data) * len(words) + int((words * weights).sum(dtype="<u8"))) & mask
        return total ^ (sums << 32 & mask | sums >> 32)

    found = 0
    for name, array in arrays.items():
        key = fletcher(numpy.frombuffer(name.encode(), dtype="u1")) | 1
        found += fletcher(numpy.ascontiguousarray(array).reshape(-1).view("u1")) * key
    return f"{found & mask:016x}"


def status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def sample(peer, what):
    """One sample of a peer, in this process."""
    work = PEERS[peer](what)
    Path("/proc/self/clear_refs").write_text("5")
    before, start = status("VmRSS:"), time.perf_counter()
    done = work()
    seconds = time.perf_counter() - start
    growth = max(status("VmHWM:") - before, 0)
    found = done if isinstance(done, str) else checksum(done)
    print(json.dumps({"seconds": seconds, "growth": growth, "found": found}))


# Taking samples in turns.


class Bench:
    def __init__(self, program, rounds, directory):
        self.program, self.rounds, self.directory = program, rounds, directory
        self.environment = dict(os.environ)

    def run(self, contender, what, **more):
        """One sample of a contender: by its work of ours, by its key of a peer, or of a program."""
        kind, work = contender
        if kind == "ours":
            command = [self.program, "--timed", work, what]
        elif kind == "peer":
            command = [sys.executable, __file__, "--sample", work, what]
        else:
            command = [kind, work, what]
        done = subprocess.run(
            command, env=self.environment | more, capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{work}: {done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])

    def compare(self, title, contenders, before=lambda: None, same=lambda found: found, **more):
        """Prints a row for each of {name: (contender, text)}, the first of which is ours."""
        samples, found = {name: [] for name in contenders}, set()
        for _ in range(self.rounds):
            for name, (contender, what) in contenders.items():
                before()
                taken = self.run(contender, what, **more)
                found.add(same(taken["found"]))
                samples[name].append(taken)
        assert len(found) == 1, f"{title}: different results: {found}"
        ours = [taken["seconds"] for taken in next(iter(samples.values()))]
        for index, (name, of) in enumerate(samples.items()):
            seconds = [taken["seconds"] for taken in of]
            ratio = statistics.median(theirs / own for theirs, own in zip(seconds, ours))
            memory = max(taken["growth"] or 0 for taken in of) >> 20
            cells = [
                "" if index else title,
                name,
                duration(statistics.median(seconds)),
                duration(min(seconds)),
                duration(max(seconds)),
                f"{memory} MiB",
                f"{ratio:.2f}× as fast" if index else "",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)

    def server(self, kind, path):
        """A server in a separate process, and its address."""
        command = [sys.executable, SERVERS, kind, path]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=self.environment
        )
        address = process.stdout.readline().strip()
        if not address:
            sys.exit(f"no server of {kind}")
        return process, address


def duration(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def evict(path):
    """Drops a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_model(directory, mib):
    """A safetensors file and a PyTorch archive of the same matrices of 8 MiB."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)
    matrices = range(mib // 8)
    tensors = {
        f"layers.{i}.weight": torch.randn(1024, 2048, generator=generator) for i in matrices
    }
    paths = directory / MODEL, directory / "model.pt"
    save_file(tensors, paths[0])
    torch.save(tensors, paths[1])
    os.sync()
    return paths


OURS = "safetensors-bridge"
GROUPS = ["files", "cold", "torch", "hub", "s3", "zarr"]
OF_MODEL = {"files", "cold", "torch", "hub"}


def files(bench, model, title="read all tensors", **more):
    contenders = {
        f"{OURS}, Checkpoint::read_all": (("ours", "load"), str(model)),
        "safetensors, numpy, pread": (("peer", "pread"), str(model)),
        "safetensors, numpy, mmap, each page touched": (("peer", "mmap"), str(model)),
        "Run:ai's streamer": (("peer", "streamer"), str(model)),
    }
    bench.compare(title, contenders, **more)


def torch_archive(bench, path):
    contenders = {
        f"{OURS}, formats::open, read_all": (("ours", "load-other"), str(path)),
        "torch.load(mmap=True), each page touched": (("peer", "torch-mmap"), str(path)),
        "torch.load": (("peer", "torch"), str(path)),
    }
    bench.compare("read all tensors of a PyTorch archive", contenders)
    contenders = {
        f"{OURS}, formats::open, read": (("ours", "first-of-other"), str(path)),
        "torch.load(mmap=True), copied": (("peer", "torch-first"), str(path)),
    }
    bench.compare("open it, read 8 MiB", contenders)


def hub(bench, model):
    """One file, and the same bytes in four shards."""
    size = -(-model.stat().st_size // 4)
    one, four = bench.directory / "one", bench.directory / "four"
    for directory in (one, four):
        directory.mkdir()
    os.link(model, one / MODEL)
    shards = [f"model-{part}-of-00004.safetensors" for part in range(4)]
    with model.open("rb") as file:
        for shard in shards:
            (four / shard).write_bytes(file.read(size))
    index = {"metadata": {}, "weight_map": {f"tensor of {shard}": shard for shard in shards}}
    (four / f"{MODEL}.index.json").write_text(json.dumps(index))
    hub_of(bench, one, "download")
    hub_of(bench, four, "download of four shards")
    shutil.rmtree(four)


def hub_of(bench, directory, title):
    server, endpoint = bench.server("hub", str(directory))
    caches = bench.directory / "caches"
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_CACHE": str(caches),
        "HF_HOME": str(caches / "home"),
    }

    def forget():
        shutil.rmtree(caches, ignore_errors=True)
        os.sync()

    def same(found):
        """The place in the cache, which has the files of the server."""
        for file in directory.iterdir():
            assert filecmp.cmp(file, Path(found, file.name), shallow=False), f"{file}: other bytes"
        return found

    def both(revision):
        what = REPO if revision == "main" else f"{REPO}@{revision}"
        return {
            f"{OURS}, hub::download": (("ours", "download"), what),
            "huggingface_hub, snapshot_download": (("peer", "download"), revision),
        }

    try:
        bench.compare(title, both("main"), before=forget, same=same, **settings)
        if directory.name == "one":
            bench.compare("a branch that is in the cache", both("main"), **settings)
            bench.compare("a commit that is in the cache", both(COMMIT), **settings)
    finally:
        server.kill()
        forget()


def s3(bench, model):
    bench.environment |= {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    server, endpoint = bench.server("s3", str(model))
    settings = {
        "AWS_ENDPOINT": endpoint,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }
    address = f"s3://{BUCKET}/{MODEL}"
    contenders = {
        f"{OURS}, remote::open, read_all": (("ours", "load-remote"), address),
        "Run:ai's streamer": (("peer", "streamer"), address),
    }
    try:
        bench.compare("read all tensors from a bucket of moto", contenders, **settings)
    finally:
        server.kill()


def zarr(bench):
    import numpy
    from safetensors.numpy import save_file

    program = build(["build", "--release"], "zarr-peer", ROOT / "scripts" / "zarr_peer")
    numbers = numpy.random.default_rng(1).standard_normal((256, 1024, 1024), dtype="float32")
    model, plain = bench.directory / "array.safetensors", bench.directory / "numbers"
    save_file({"u": numbers}, model)
    numbers.tofile(plain)
    for planes in ("1", "16"):
        folder = bench.directory / f"{planes}.zarr"
        subprocess.run([program, "write", plain, folder, planes], check=True)
        chunks = [path for path in folder.rglob("*") if path.is_file()]

        def before():
            for path in [model, *chunks]:
                evict(path)

        for title, work in {"all of 1 GiB": "load", "1/16 of each plane": "slice"}.items():
            key = "read" if work == "load" else "slice"
            contenders = {
                f"{OURS}, a safetensors file": (("ours", work), str(model)),
                f"zarrs, chunks of {4 * int(planes)} MiB": ((program, key), str(folder)),
            }
            bench.compare(f"{title}, from the disk", contenders, before=before)
        shutil.rmtree(folder)


def build(command, name, workspace=ROOT):
    """A program of ours or of a peer."""
    command = ["cargo", *command, "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=workspace, check=True, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == name:
            return message["executable"]
    sys.exit(f"cargo has built no program {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", default=GROUPS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=1024)
    # With 256 MiB, moto answers so late that Run:ai's streamer gives up.
    parser.add_argument("--s3-mib", type=int, default=128)
    parser.add_argument("--dir", help="where the test data are, for a while")
    parser.add_argument("--sample", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sample:
        return sample(*args.sample)
    program = build(["bench", "-p", "benches", "--bench", "table", "--no-run"], "table")
    print("| work | by | median | minimum | maximum | memory | ours is |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        directory = Path(directory)
        bench = Bench(program, args.rounds, directory)
        if OF_MODEL.intersection(args.groups):
            model, archive = write_model(directory, args.mib)
        for group in args.groups:
            if group == "files":
                files(bench, model)
            elif group == "cold":
                title = "read all tensors from the disk"
                files(bench, model, title, before=lambda: evict(model))
            elif group == "torch":
                torch_archive(bench, archive)
            elif group == "hub":
                hub(bench, model)
            elif group == "s3":
                small = directory / "bucket"
                small.mkdir()
                s3(bench, write_model(small, args.s3_mib)[0])
            elif group == "zarr":
                zarr(bench)
            else:
                sys.exit(f"no group {group}")


if __name__ == "__main__":
    main()
