#!/usr/bin/env python3
"""Checks that this project and Python's huggingface_hub share one cache: each finds the other's
downloads, also offline, and both may download at once.

Needs cargo and the package huggingface_hub (pip install huggingface_hub). No network beyond
loopback: both talk to the test server of safetensors-hub, which has faults on demand.

    python dev/scripts/hub_interop.py
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKEN = "hf_the_right_token"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
MODEL = ["model.safetensors.index.json", *SHARDS]

# What the Python side runs: arguments are the repository, the patterns, and whether it is offline.
PYTHON = """
import json, sys
from huggingface_hub import snapshot_download
repo, patterns, offline = json.loads(sys.argv[1])
kind = "dataset" if repo.startswith("datasets/") else None
repo = repo.removeprefix("datasets/")
print(snapshot_download(repo, repo_type=kind, allow_patterns=patterns, local_files_only=offline))
"""

# The same for a bucket: prints its files, and the length of the start of a file.
BUCKET = """
from huggingface_hub import HfFileSystem
system = HfFileSystem(token=False)
names = sorted(system.ls("buckets/owner/name", detail=False))
with system.open("hf://buckets/owner/name/model-00001-of-00002.safetensors") as file:
    print(*names, len(file.read(100)))
"""


class Server:
    """The test server."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.endpoint = self.process.stdout.readline().strip()

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def log(self):
        """The requests since the last call."""
        return json.loads(self.ask("log"))

    def fault(self, text):
        assert self.ask(f"fault {text}").strip() == "ok"


def build():
    """Builds the examples and returns where they are."""
    command = ["cargo", "build", "--quiet", "-p", "safetensors-hub", "--features", "download"]
    subprocess.run(command + ["--examples"], cwd=ROOT, check=True)
    metadata = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    output = subprocess.run(metadata, cwd=ROOT, check=True, capture_output=True, text=True)
    return pathlib.Path(json.loads(output.stdout)["target_directory"]) / "debug" / "examples"


class Side:
    """Both ways to download into one cache."""

    def __init__(self, server, programs, cache):
        self.server, self.programs, self.cache = server, programs, cache

    def environment(self, **more):
        keep = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        fixed = {
            "HF_ENDPOINT": self.server.endpoint,
            "HF_HUB_CACHE": str(self.cache),
            "HF_HOME": str(self.cache / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        return keep | fixed | more

    def start_rust(self, repo, *files, **more):
        command = [self.programs / "hub_download", repo, *files]
        return self.start(command, more)

    def start_python(self, repo, patterns, offline=False, **more):
        argument = json.dumps([repo, patterns, offline])
        return self.start([sys.executable, "-c", PYTHON, argument], more)

    def start(self, command, more):
        return subprocess.Popen(
            command,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rust(self, *arguments, **more):
        return end(self.start_rust(*arguments, **more))

    def python(self, *arguments, **more):
        return end(self.start_python(*arguments, **more))

    def blobs(self):
        return sorted(self.cache.glob("*--*/blobs/*"))

    def unfinished(self):
        return [blob for blob in self.blobs() if blob.name.endswith(".incomplete")]


def end(process):
    """The directory that a process prints first."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.splitlines()[0]


def wait_for_bytes(side, count):
    """Waits until unfinished downloads have so many bytes."""
    deadline = time.monotonic() + 60
    while sum(path.stat().st_size for path in side.unfinished()) < count:
        assert time.monotonic() < deadline, "no bytes arrive"
        time.sleep(0.01)


def sent(log, origin="cdn"):
    return sum(seen["bytes"] for seen in log if seen["origin"] == origin)


def check_cache(side):
    """Every blob has the content of its name, and Python finds no fault in the cache."""
    import hashlib

    from huggingface_hub import scan_cache_dir

    for blob in side.blobs():
        content = blob.read_bytes()
        if blob.name.startswith("68f0"):
            continue
        if len(blob.name) == 64:
            found = hashlib.sha256(content).hexdigest()
        else:
            found = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        assert found == blob.name, f"{blob} has the digest {found}"
    assert not side.unfinished(), side.unfinished()
    side.cache.mkdir(exist_ok=True)
    report = scan_cache_dir(side.cache)
    assert not report.warnings, report.warnings


def rust_then_python(side):
    """Python finds Rust's downloads, and downloads nothing again"""
    directory = side.rust("owner/name", "config.json")
    side.server.log()
    assert side.python("owner/name", [*MODEL, "config.json"]) == directory
    log = side.server.log()
    assert not [seen for seen in log if "/resolve/" in seen["path"]], log


def rust_then_python_offline(side):
    """Python finds it offline, too"""
    directory = side.rust("owner/name")
    side.server.log()
    assert side.python("owner/name", MODEL, HF_HUB_OFFLINE="1") == directory
    assert side.python("owner/name", MODEL, True) == directory
    assert not side.server.log()


def python_then_rust(side):
    """Rust finds Python's downloads, with one request"""
    directory = side.python("owner/name", None)
    side.server.log()
    assert side.rust("owner/name", "config.json", "tokenizer/*") == directory
    assert len(side.server.log()) == 1


def python_then_rust_offline(side):
    """Rust finds it offline, too, without any request"""
    directory = side.python("owner/name", MODEL)
    side.server.log()
    assert side.rust("owner/name", HF_HUB_OFFLINE="1") == directory
    assert not side.server.log()


def both_at_once(side):
    """Three processes of each download the same model at once"""
    for _ in range(3):
        side.server.fault("cdn - 2 slow 300")
    started = []
    for _ in range(3):
        started.append(side.start_rust("owner/name"))
        started.append(side.start_python("owner/name", MODEL))
    assert len({end(process) for process in started}) == 1


def both_at_once_with_faults(side):
    """The same while connections break"""
    for cut in (100, 1_000_000, 5_000_000, 19_000_000):
        side.server.fault(f"cdn - 2 cut {cut}")
    started = []
    for _ in range(2):
        started.append(side.start_rust("owner/name"))
        started.append(side.start_python("owner/name", MODEL))
    assert len({end(process) for process in started}) == 1


def python_killed_then_rust(side):
    """Rust goes on with a download that Python was killed in"""
    side.server.fault("cdn - 2 stall 10000000")
    process = side.start_python("owner/name", MODEL)
    wait_for_bytes(side, 10_000_000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = sum(path.stat().st_size for path in side.unfinished())
    side.server.log()
    side.rust("owner/name")
    again = sent(side.server.log())
    assert again <= 40_001_000 - kept, f"{again} bytes, though {kept} were there"


def rust_killed_then_python(side):
    """Python succeeds after Rust was killed, and Rust's unfinished files do no harm"""
    side.server.fault("cdn - 2 stall 10000000")
    process = side.start_rust("owner/name")
    wait_for_bytes(side, 10_000_000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    directory = side.python("owner/name", MODEL)
    assert side.rust("owner/name") == directory
    for path in side.unfinished():
        path.unlink()


def private(side):
    """Both read a private repository with HF_TOKEN, and share it"""
    directory = side.rust("owner/private", HF_TOKEN=TOKEN)
    assert side.python("owner/private", MODEL, HF_TOKEN=TOKEN) == directory
    refused = side.start_rust("owner/private")
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode != 0 and "HF_TOKEN" in errors, errors


def two_repositories(side):
    """A cache has several repositories of both"""
    side.rust("owner/name")
    side.python("owner/other", MODEL)
    assert side.rust("owner/other", HF_HUB_OFFLINE="1") == side.python("owner/other", MODEL, True)


def no_digests(side):
    """Python finds Rust's download under an ETag that two files share"""
    directory = side.rust("owner/alike", "config.json")
    side.server.log()
    assert side.python("owner/alike", [*MODEL, "config.json"]) == directory
    assert not [seen for seen in side.server.log() if "/resolve/" in seen["path"]]
    assert side.python("owner/alike", MODEL, True) == directory
    shards = [(pathlib.Path(directory) / name).read_bytes() for name in SHARDS]
    assert b'"a"' in shards[0] and b'"b"' in shards[1]


def data_sets(side):
    """Each finds the data sets of the other, also offline"""
    directory = side.rust("datasets/owner/name", "config.json")
    assert side.python("datasets/owner/name", MODEL, True) == directory
    side.python("datasets/owner/name", None)
    side.server.log()
    assert side.rust("datasets/owner/name", "tokenizer/*", HF_HUB_OFFLINE="1") == directory
    assert not side.server.log()


def buckets(side):
    """The server's bucket is one that Python lists and reads"""
    names = [f"buckets/owner/name/{name}" for name in ("config.json", *sorted(MODEL), "tokenizer")]
    found = end(side.start([sys.executable, "-c", BUCKET], {})).split()
    assert found == [*sorted(names), "100"], found


CASES = [
    rust_then_python,
    rust_then_python_offline,
    python_then_rust,
    python_then_rust_offline,
    both_at_once,
    both_at_once_with_faults,
    python_killed_then_rust,
    rust_killed_then_python,
    private,
    two_repositories,
    no_digests,
    data_sets,
    buckets,
]


def main():
    import huggingface_hub

    programs = build()
    print(f"huggingface_hub {huggingface_hub.__version__}, Python {sys.version.split()[0]}")
    failed = 0
    for case in CASES:
        server = Server(programs / "hub_server")
        with tempfile.TemporaryDirectory() as directory:
            side = Side(server, programs, pathlib.Path(directory) / "cache")
            try:
                case(side)
                check_cache(side)
                log = server.log()
                assert not [seen for seen in log if seen["origin"] == "cdn" and seen["token"]], log
                result = "ok"
            except AssertionError as error:
                failed += 1
                result = f"FAILED: {error}"
        server.process.stdin.close()
        server.process.wait()
        print(f"{case.__doc__}: {result}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
