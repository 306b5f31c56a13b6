#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["ray>=2.60"]
# ///
"""Tests fleet.py with two Ray nodes on this machine, one of which is killed in the middle.

    pip install ray
    pip install s3fs 'moto[server]'       for the checkpoints in buckets, which need a command with
                                          the feature `remote`; they are left out without these
    cargo build -p safetensors-bridge-cli --features remote
    examples/distributed/ray/test_fleet.py target/debug/safetensors
    examples/distributed/ray/test_fleet.py target/release/safetensors --measure    1 worker and 2 workers

What must hold after a node or the driver has died:

- nothing is lost: every output exists, `safetensors verify` calls it sound, and its digests are
  those of the same conversion without Ray;
- nothing is done twice: the manifest has exactly one line with the status "done" for each
  checkpoint, and a further run starts no command at all.

The command is run through a script that writes a line into a log and then waits, so that the test
knows what was started, and has the time to kill it.
"""

import argparse
import collections
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import test_buckets

FLEET = Path(__file__).with_name("fleet.py")
# Ray asks for a token where an earlier run has left one, and the nodes need not agree on it.
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1",
               "RAY_AUTH_MODE": "disabled"}
PORT = 6390
ADDRESS = f"127.0.0.1:{PORT}"
LIMIT = 240.0  # seconds, for whatever is waited for


def write_checkpoint(path: Path, values: dict[str, bytes]) -> None:
    """Writes a safetensors file of F32 vectors."""
    header, offset = {}, 0
    for name, data in values.items():
        end = offset + len(data)
        header[name] = {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.values()))


def random_floats(count: int, seed: int) -> bytes:
    """Random F32 numbers without NaN: the exponent's upper bit is cleared."""
    words = bytearray(random.Random(seed).randbytes(4 * count))
    words[3::4] = bytes(byte & 0xBF for byte in words[3::4])
    return bytes(words)


def descendants(root: int) -> list[int]:
    """A process and all below it, as /proc shows them."""
    children = collections.defaultdict(list)
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
            children[int(stat.rpartition(")")[2].split()[1])].append(int(entry.name))
        except (OSError, ValueError, IndexError):
            continue
    found = [root]
    for process in found:
        found += children[process]
    return found


def kill_tree(process: subprocess.Popen) -> None:
    """Ends a node as the loss of its machine would: everything at once, without a word."""
    for number in descendants(process.pid):
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT:.0f} s for: {what}"
        time.sleep(0.05)


class Cluster:
    """Ray nodes on this machine, each with its own processes."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.nodes: list[subprocess.Popen] = []

    def start(self, cpus: int) -> None:
        """Starts the head, or another node."""
        ray_command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        if self.nodes:
            where = ["--address", ADDRESS]
        else:
            where = ["--head", f"--port={PORT}", "--include-dashboard=false",
                     f"--temp-dir={self.directory}"]
        sizes = [f"--num-cpus={cpus}", "--object-store-memory=100000000"]
        log = self.directory / f"node{len(self.nodes)}.log"
        with open(log, "wb") as to:
            node = subprocess.Popen([*ray_command, *where, *sizes], env=ENVIRONMENT, stdout=to,
                                    stderr=to)
        self.nodes.append(node)
        wait_for("a node of Ray", lambda: "Ray runtime started" in log.read_text())

    def stop(self) -> None:
        for node in reversed(self.nodes):
            kill_tree(node)


class Fleet:
    """fleet.py with a manifest and a log of the commands that it starts."""

    def __init__(self, directory: Path, command: Path, name: str, wait: float = 0.0):
        self.command = command
        self.manifest = directory / f"{name}.jsonl"
        self.log = directory / f"{name}.log"
        self.environment = dict(ENVIRONMENT)
        self.script = directory / f"{name}.sh"
        self.log.touch()
        self.script.write_text(
            "#!/bin/sh\n"
            f'case "$1" in --version|inspect) exec {command} "$@" ;; esac\n'
            f'echo "$@" >> {self.log}\n'
            f'sleep {wait}\n'
            f'exec {command} "$@"\n'
        )
        self.script.chmod(0o755)

    def start(self, *arguments: str | Path) -> subprocess.Popen:
        at = arguments.index("--") if "--" in arguments else len(arguments)
        ours = ["--command", self.script, "--manifest", self.manifest, "--address", ADDRESS]
        line = [sys.executable, FLEET, *arguments[:at], *ours, "--json", *arguments[at:]]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment)

    def run(self, *arguments: str | Path, code: int = 0) -> dict:
        """Runs fleet.py to its end, and checks its exit code."""
        return self.finish(self.start(*arguments), code)

    def finish(self, driver: subprocess.Popen, code: int = 0) -> dict:
        out, err = driver.communicate(timeout=LIMIT)
        assert driver.returncode == code, f"exit code {driver.returncode}, expected {code}:\n{err}"
        return json.loads(out) if out else {"error": err}

    def entries(self, status: str = "done") -> list[dict]:
        if not self.manifest.exists():
            return []
        complete = self.manifest.read_bytes().split(b"\n")[:-1]
        return [entry for entry in map(json.loads, complete) if entry["status"] == status]

    def started(self) -> int:
        return len(self.log.read_text().splitlines())


def check_outputs(fleet: Fleet, models: Path, out: Path) -> None:
    """Nothing is lost, nothing is done twice: see the head of this file."""
    names = sorted(str(path.relative_to(models)) for path in models.rglob("*.safetensors"))
    done = collections.Counter(os.path.relpath(e["path"], models) for e in fleet.entries())
    assert sorted(done) == names and set(done.values()) == {1}, done
    digest = [fleet.command, "digest", "--json"]
    for name in names:
        subprocess.run([fleet.command, "verify", out / name], check=True, capture_output=True)
        alone = out.parent / "alone.safetensors"
        convert = [fleet.command, "convert", models / name, alone, "--dtype", "bf16"]
        subprocess.run(convert, check=True, capture_output=True)
        here, there = (json.loads(subprocess.check_output([*digest, path]))["tensors"]
                       for path in (out / name, alone))
        assert here == there, f"{name} differs from a conversion without Ray"
    left = [path for path in out.rglob("*") if path.name.endswith(".tmp")]
    assert not left, f"temporary files are left: {left}"


def a_node_dies(cluster: Cluster, directory: Path, command: Path, models: Path) -> str:
    """The second node is killed while it converts. The first does the rest."""
    out, fleet = directory / "out", Fleet(directory, command, "node", wait=1.0)
    second = cluster.nodes[1]

    def waiting_there() -> set[int]:
        """The commands on the second node, each of which has a second to live."""
        found = set()
        for process in descendants(second.pid):
            try:
                if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"sleep\0"):
                    found.add(process)
            except OSError:
                continue
        return found

    arguments = ["convert", models, "--out", out, "--", "--dtype", "bf16"]
    driver = fleet.start(*arguments)
    wait_for("three checkpoints", lambda: len(fleet.entries()) >= 3)
    before = waiting_there()
    wait_for("a command on the second node", lambda: bool(waiting_there() - before))
    kill_tree(second)
    done = len(fleet.entries())
    summary = fleet.finish(driver)
    assert summary["attempts"] > summary["done"], "the node died without a task on it"
    assert len(summary["done_by_node"]) == 2, "only one node has worked"
    check_outputs(fleet, models, out)
    started = fleet.started()
    again = fleet.run(*arguments)
    assert again["skipped"] == summary["checkpoints"] and fleet.started() == started
    return f"{summary['done']} done in {summary['attempts']} attempts; killed after {done}; " \
           f"a second run skips {again['skipped']}"


def the_driver_dies(cluster: Cluster, directory: Path, command: Path, models: Path) -> str:
    """The driver is killed while it works, and started again at once."""
    out, fleet = directory / "out2", Fleet(directory, command, "driver", wait=0.5)
    arguments = ["convert", models, "--out", out, "--", "--dtype", "bf16"]
    driver = fleet.start(*arguments)
    wait_for("three checkpoints", lambda: len(fleet.entries()) >= 3)
    driver.kill()
    driver.communicate()
    before = [entry["path"] for entry in fleet.entries()]
    with open(fleet.manifest, "ab") as manifest:
        manifest.write(b'{"status": "done", "pa')  # as if it died while it wrote
    summary = fleet.run(*arguments)
    assert summary["skipped"] == len(before), summary
    log = fleet.log.read_text()
    for path in before:
        assert log.count(f"-- {path} ") == 1, f"{path} was done, and then started again"
    check_outputs(fleet, models, out)
    return f"killed after {len(before)}; the second driver skips these and does {summary['done']}"


def what_changes_is_done_again(cluster: Cluster, directory: Path, command: Path, _: Path) -> str:
    """Only items that failed, have changed or have lost their output run again."""
    models, out = directory / "few", directory / "out3"
    for number in range(3):
        write_checkpoint(models / f"{number}.safetensors", {"a": random_floats(8, number)})
    sound = (models / "1.safetensors").read_bytes()
    (models / "1.safetensors").write_bytes(sound[:-1])
    fleet = Fleet(directory, command, "again")
    arguments = ["convert", models, "--out", out]
    summary = fleet.run(*arguments, "--attempts", "2", code=1)
    assert (summary["done"], summary["failed"], summary["attempts"]) == (2, 1, 4), summary
    assert not (out / "1.safetensors").exists() and "1.safetensors" in str(summary["failures"])
    (models / "1.safetensors").write_bytes(sound)
    summary = fleet.run(*arguments)
    assert (summary["skipped"], summary["done"]) == (2, 1), summary
    (out / "0.safetensors").unlink()
    os.utime(models / "2.safetensors", ns=(1, 1))
    summary = fleet.run(*arguments)
    assert (summary["skipped"], summary["done"]) == (1, 2), summary
    summary = fleet.run(*arguments, "--", "--dtype", "bf16")
    assert (summary["skipped"], summary["done"]) == (0, 3), "other options"
    return "a malformed checkpoint fails alone; repaired, changed, removed: only these run"


def wrong_usage(cluster: Cluster, directory: Path, command: Path, models: Path) -> str:
    """What makes no sense ends with 2, and changes nothing."""
    fleet = Fleet(directory, command, "usage")
    few, written = directory / "few", directory / "out3"
    for arguments in (["verify"], ["convert", models], ["verify", models, "--cpus", "0"],
                      ["convert", models, "--out", models],
                      ["convert", few / "0.safetensors", written / "0.safetensors",
                       "--out", written],
                      ["convert", models, "--out", "https://host/models"],
                      ["convert", models, "--out", "s3://user:password@bucket/models"],
                      ["verify", "https://host/models/"],
                      ["convert", models, "--out", directory / "x", "--root", directory / "y"],
                      ["convert", few, few / "0.safetensors", written / "0.safetensors",
                       "--out", directory / "x"]):
        fleet.run(*arguments, code=2)
    assert fleet.started() == 0 and not (directory / "x").exists()
    summary = fleet.run("verify", few, "--", "--no-such-option", code=2)
    assert summary["attempts"] == summary["failed"] == 3, "wrong usage is not tried again"
    error = fleet.run("verify", few, "--cpus", "64", "--node-wait", "1", code=1)["error"]
    assert "the largest node has 1 processors" in error and "Traceback" not in error, error
    fleet.manifest = few / "0.safetensors"
    before = fleet.manifest.read_bytes()
    assert "not a manifest" in fleet.run("verify", models, code=2)["error"]
    assert fleet.manifest.read_bytes() == before
    fleet.manifest = directory / "damaged.jsonl"
    fleet.manifest.write_bytes(b'{"status": "done", "path": 7}\n')
    error = fleet.run("verify", models, code=2)["error"]
    assert "line 1 is damaged" in error and "Traceback" not in error, error
    return "fourteen mistakes, none of which has changed a file"


def places_and_duplicates(cluster: Cluster, directory: Path, command: Path, _: Path) -> str:
    """Indexes, lists, addresses, and equal tensors."""
    models, out = directory / "places", directory / "out4"
    one, two = random_floats(1024, 1), random_floats(1024, 2)
    write_checkpoint(models / "a" / "model.safetensors", {"one": one, "two": two})
    write_checkpoint(models / "c" / "part.safetensors", {"three": two})
    (models / "c" / "link.safetensors").symlink_to("part.safetensors")
    shards = [command, "convert", models / "a", models / "b", "--max-shard-size", "4096"]
    subprocess.run(shards, check=True, capture_output=True)
    # Ranks that were killed while they saved.
    part = models / "a" / ".model.safetensors.index.json.step-1.ranks"
    write_checkpoint(part / "model-00001-of-00002.safetensors", {"part": one})
    fleet = Fleet(directory, command, "places")
    summary = fleet.run("dedup", models)
    assert summary["checkpoints"] == 4, "neither shards nor parts of ranks are checkpoints"
    equal = summary["duplicates"]["checkpoints"]
    first, index = models / "a/model.safetensors", models / "b/model.safetensors.index.json"
    assert [group["places"] for group in equal] == [[str(first), str(index)]]
    tensors = {len(group["places"]): group["spare_bytes"]
               for group in summary["duplicates"]["tensors"]}
    assert tensors == {2: 4096, 3: 8192}, "a link to a file is no duplicate"

    paths = directory / "paths.txt"
    paths.write_text(f"{first}\n{index}\nnowhere://bucket/m.safetensors\n")
    summary = fleet.run("convert", "--list", paths, "--out", out, "--root", models,
                        "--attempts", "1", code=1)
    assert (summary["done"], summary["failed"]) == (2, 1), summary
    assert "-- nowhere://bucket/m.safetensors " in fleet.log.read_text(), "handed over as it is"
    assert (out / "a" / "model.safetensors").exists() and (out / "b" / "model").is_dir()
    return "an index with its shards is one checkpoint; equal ones are found"


def names_that_are_not_utf8(cluster: Cluster, directory: Path, command: Path, _: Path) -> str:
    """A file is worked on whatever the bytes of its name are."""
    models, out = directory / "bytes", directory / "out5"
    name = os.fsdecode(b"\xff.safetensors")
    write_checkpoint(models / name, {"one": random_floats(8, 1)})
    paths = directory / "bytes.txt"
    paths.write_bytes(os.fsencode(models / name) + b"\n")
    for number, arguments in enumerate((["convert", models, "--out", out], ["verify", models],
                                        ["digest", "--list", paths], ["dedup", models])):
        fleet = Fleet(directory, command, f"bytes{number}")
        assert fleet.run(*arguments)["attempts"] == 1, arguments
        assert fleet.run(*arguments)["skipped"] == 1, arguments
    assert (out / name).exists()
    listed = [sys.executable, FLEET, "verify", "--list", "-", "--command", command, "--manifest",
              directory / "stdin.jsonl", "--address", ADDRESS]
    strict = {**ENVIRONMENT, "PYTHONIOENCODING": "utf-8:strict"}
    subprocess.run(listed, input=paths.read_bytes(), check=True, capture_output=True, env=strict)
    error = fleet.run("convert", models, "--out", "s3://bucket/x", code=2)["error"]
    assert "not UTF-8" in error and "Traceback" not in error, error
    return "converted, verified, digested, and skipped when they are done"


def measure(cluster: Cluster, directory: Path, command: Path) -> None:
    """Prints a table: 32 checkpoints of 64 MB, on one worker and on two."""
    models = directory / "measured"
    for number in range(32):
        write_checkpoint(models / f"{number}.safetensors", {"a": random_floats(1 << 24, number)})
    total = sum(path.stat().st_size for path in models.iterdir())
    print(f"{'':8}  {'workers':>7}  {'seconds':>7}  {'MB/s':>7}   {os.cpu_count()} processors, "
          f"load {os.getloadavg()[0]:.1f}")
    for workers in (0, 1, 2):
        if workers:
            cluster.start(cpus=1)
        for operation in ("verify", "digest", "convert"):
            out, options = directory / f"measured{workers}", []
            if operation == "convert":
                options = ["--dtype", "bf16"]
            if workers:
                fleet = Fleet(directory, command, f"{operation}{workers}")
                fleet.script = command
                where = ["--out", out] if operation == "convert" else []
                seconds = fleet.run(operation, models, *where, "--", *options)["seconds"]
            else:
                out.mkdir(exist_ok=True)
                begin = time.monotonic()
                for path in models.iterdir():
                    where = [out / path.name] if operation == "convert" else ["--json"]
                    subprocess.run([command, operation, path, *where, *options], check=True,
                                   capture_output=True,
                                   env={**os.environ, "SAFETENSORS_THREADS": "1"})
                seconds = time.monotonic() - begin
            print(f"{operation:8}  {workers or 'no Ray':>7}  {seconds:7.2f}  "
                  f"{total / seconds / 1e6:7.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", type=Path, help="the safetensors command to run")
    parser.add_argument("--measure", action="store_true", help="print a table of speeds instead")
    options = parser.parse_args()
    command = options.command.resolve(strict=True)
    # Ray's sockets have paths of at most 107 bytes.
    with (tempfile.TemporaryDirectory(prefix="fleet", dir="/tmp") as name,
          test_buckets.s3_server(command) as s3):
        directory = Path(name)
        ENVIRONMENT.update(s3)  # before the nodes start, which run the command
        cluster = Cluster(directory)
        try:
            if options.measure:
                measure(cluster, directory, command)
                return
            models = directory / "models"
            for number in range(12):
                values = {"a": random_floats(1 << 16, number), "b": random_floats(7, 100 + number)}
                write_checkpoint(models / str(number) / "model.safetensors", values)
            cluster.start(cpus=1)
            cluster.start(cpus=1)
            for check in (a_node_dies, the_driver_dies, what_changes_is_done_again, wrong_usage,
                          places_and_duplicates, names_that_are_not_utf8,
                          test_buckets.in_buckets(Fleet, s3)):
                begin = time.monotonic()
                told = check(cluster, directory, command, models)
                print(f"{check.__name__}: {told} ({time.monotonic() - begin:.0f} s)", flush=True)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
