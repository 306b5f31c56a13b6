#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["ray>=2.60"]
# ///
"""Runs the `safetensors` command over many checkpoints, on all nodes of a Ray cluster (PyPI: ray).

    fleet.py verify models/                                  every checkpoint below models/
    fleet.py digest --list paths.txt                         one path a line; - is standard input
    fleet.py convert models/ --out small/ -- --dtype bf16    options after -- are the command's own
    fleet.py dedup models/ --json                            equal checkpoints, and equal tensors
    fleet.py convert s3://b/models/ --out s3://b/small       a slash at the end: all below it

A checkpoint is an index with its shards, or any other *.safetensors file. All nodes must see the
same files under the same paths, and the same version of the command. An address such as
s3://bucket/model.safetensors needs a command with the feature `remote`. Without fsspec (PyPI) no
bucket is listed, and no address is skipped, because nothing shows whether the object has changed.

`convert` writes DIR/a/b.safetensors for a/b.safetensors, and the directory DIR/a/b for
a/b.safetensors.index.json. The command writes each output completely or not at all.

The manifest gets one line for each checkpoint that is done or has failed. A later run with the same
manifest skips what is done: the same path, files of the same sizes and times (ETags at addresses),
the same options, the same version of the command and, for `convert`, an output that is still as it
was written. What has failed is tried again. So a run that was killed is continued by starting it
again.

An attempt fails if the command fails, or if its node dies. It is repeated until --attempts is
reached, except for wrong usage. Other checkpoints are not affected.
Exit codes: 0 all is done, 1 a checkpoint has failed, 2 wrong usage.
"""

import argparse
import collections
import contextlib
import dataclasses
import heapq
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

import places
from manifest import Manifest
from places import INDEX_SUFFIX, Stamp, WrongUsage, scheme_of, shown

PAUSE = 1.0  # seconds before a second attempt, doubled before each further one
Ran = subprocess.CompletedProcess[str]


@dataclasses.dataclass(frozen=True)
class Job:
    """One checkpoint, and the command's arguments for it."""

    path: str
    arguments: list[str]  # of the command, beginning with its subcommand
    output: str | None  # the file or directory that `convert` writes
    files: list[Stamp]

    @property
    def name(self) -> str:
        """The path as it may be shown: addresses without parts that may be secret."""
        return shown(self.path)

    def key(self, version: str) -> str:
        """What must be equal for a finished job to be skipped."""
        return json.dumps([version, list(map(shown, self.arguments)), self.files])

    def is_known(self) -> bool:
        """Whether a change of the files would show."""
        return all(version is not None for _, _, version in self.files)


def named_paths(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Each path to work on, and the directory that its output's place is relative to."""
    named = list(options.paths)
    if options.list:
        source = sys.stdin.fileno() if options.list == "-" else options.list
        listed = open(source, encoding="utf-8", errors="surrogateescape", closefd=source != 0)
        with listed:
            named += [line.rstrip("\n") for line in listed if line.strip()]
    if not named:
        raise WrongUsage("name a path, or a list of paths with --list")
    for path in map(places.local, named):
        if scheme_of(path):
            own = options.root if options.root and scheme_of(options.root) else None
            if shown(path).endswith("/"):
                for below in places.checkpoints_below(path, None):
                    yield below, own or path
            else:
                yield path, own or shown(path).rpartition("/")[0] + "/"
            continue
        path, own = os.path.abspath(path), options.root
        own = None if own and scheme_of(own) else own
        if os.path.isdir(path):
            for below in places.checkpoints_below(path, options.out):
                yield below, own or path
        else:
            yield path, own or os.path.dirname(path)


def make_jobs(options: argparse.Namespace) -> list[Job]:
    """One job for each checkpoint, even if it is named twice."""
    outputs: dict[str, str | None] = {}  # by path
    names: dict[str, str] = {}
    for path, root in named_paths(options):
        if names.setdefault(shown(path), path) != path:
            raise WrongUsage(f"{shown(path)}: two addresses differ only in what is not shown")
        is_written = options.operation == "convert"
        outputs[path] = places.output_of(path, root, options.out) if is_written else None

    def job(path: str, files: list[str]) -> Job:
        operation = "digest" if options.operation == "dedup" else options.operation
        form = [] if operation == "convert" else ["--json"]
        output = outputs[path]
        named = [path, output] if output else [path]
        arguments = [operation, *form, *options.arguments, "--", *named]
        return Job(path, arguments, output, list(map(places.stamp, files)))

    with ThreadPoolExecutor(32) as pool:  # each question to a bucket takes a while
        files = list(pool.map(places.files_of, outputs))
        if options.operation == "convert":
            places.check_outputs(outputs, dict(zip(outputs, files)))
        return list(pool.map(job, outputs, files))


def attempt(command: str, version: str, job: Job, threads: int, timeout: float | None) -> dict:
    """Runs the command once, as a Ray task. The `code` is None if it did not come to its end."""
    environment = {**os.environ, "SAFETENSORS_THREADS": str(threads), "NO_COLOR": "1"}

    def run(*arguments: str) -> Ran:
        return subprocess.run([command, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                              encoding="utf-8", errors="surrogateescape", env=environment,
                              timeout=timeout)

    node = ray.get_runtime_context().get_node_id()
    outcome = {"code": None, "error": None, "result": None, "seconds": 0.0, "node": node}
    begin = time.monotonic()
    try:
        here = run("--version").stdout.strip()
        if here != version:
            raise OSError(f"this node has {here!r}, the driver has {version!r}")
        if job.output is not None and not scheme_of(job.output):
            os.makedirs(os.path.dirname(job.output), exist_ok=True)
        ran = run(*job.arguments)
        result = result_of(job, ran, run)
        error = error_of(ran, result).removeprefix(f"{job.name}: ") if ran.returncode else None
        outcome.update(code=ran.returncode, error=error, result=result)
    except subprocess.TimeoutExpired:  # its own text has the whole command line
        outcome["error"] = f"not done after {timeout} seconds"
    except (OSError, ValueError, KeyError) as error:
        outcome["error"] = str(error)
    outcome["seconds"] = round(time.monotonic() - begin, 3)
    return outcome


def result_of(job: Job, ran: Ran, run: Callable[..., Ran]) -> Any:
    """What the manifest keeps of the command's output.

    Of `verify`: its verdict. Of `convert`: the files that were written. Of `digest`: the name,
    digest, dtype, shape and bytes of each tensor.
    """
    operation = job.arguments[0]
    if operation == "verify" and ran.stdout:
        return json.loads(ran.stdout)["results"][0]
    if ran.returncode != 0:
        return None
    if operation == "convert":
        if scheme_of(job.output):
            return None  # the driver looks, as the nodes need no fsspec
        written = places.output_stamps(job.output)
        if not written or any(size is None for _, size, _ in written):
            raise OSError(f"the command ended without an error, but wrote no {job.output}")
        return written
    digests = {t["name"]: t["xxh3_128"] for t in json.loads(ran.stdout)["tensors"]}
    tensors = json.loads(run("inspect", "--json", "--", job.path).stdout)["tensors"]
    tensors = [tensor for tensor in tensors if tensor["name"] in digests]
    return [[t["name"], digests[t["name"]], t["dtype"], t["shape"], t["bytes"]] for t in tensors]


def error_of(ran: Ran, result: Any) -> str:
    """Why the command failed: its own words, or the signal that ended it."""
    if ran.returncode < 0:
        return f"ended by signal {-ran.returncode}"
    if isinstance(result, dict):
        return result["error"] or "; ".join(map(str, result["warnings"]))
    return ran.stderr.strip().partition("\n")[0].removeprefix("error: ")


def finished(manifest: Manifest, job: Job, version: str, assume_unchanged: bool) -> dict | None:
    """The entry of a job that need not run again.

    What an address hides may say which object it means. Nothing is assumed about it.
    """
    entry = manifest.done.get(job.key(version))
    assumed = assume_unchanged and job.name == job.path
    if not entry or not (job.is_known() or assumed):
        return None
    if job.output is not None:
        written = [tuple(one) for one in entry["result"]]
        is_known = all(one[2] is not None for one in written)
        if written != places.output_stamps(job.output) or not (is_known or assumed):
            return None
    return entry


class Patience:
    """Waits for a node that is large enough for a task. Ray itself would wait forever."""

    def __init__(self, cpus: int, seconds: float):
        self.cpus, self.seconds = cpus, seconds
        self.last = time.monotonic()  # when there was such a node
        self.told = False

    def look(self, nodes: list[dict]) -> None:
        """Looks at the nodes of the cluster, as Ray describes them."""
        now, alive = time.monotonic(), [node["Resources"] for node in nodes if node["Alive"]]
        largest = max((resources.get("CPU", 0) for resources in alive), default=0)
        if largest >= self.cpus:
            self.last, self.told = now, False
            return
        found = f"--cpus {self.cpus}: the largest node has {largest:g} processors"
        if now - self.last >= self.seconds:
            raise OSError(f"{found}, and no larger one came in {self.seconds:g} seconds")
        if not self.told:
            print(f"{found}; waiting for a larger one")
            self.told = True


def work(jobs: list[Job], version: str, options: argparse.Namespace) -> Iterator[dict]:
    """Runs the jobs on the cluster, and gives the entry of each when it is done or has failed.

    Ray does not repeat tasks by itself. All attempts are counted here, whatever ended them.
    """
    # So that the nodes need no copy of that file.
    ray.cloudpickle.register_pickle_by_value(places)
    task = ray.remote(attempt).options(num_cpus=options.cpus, max_retries=0,
                                       scheduling_strategy="SPREAD")
    # When the next attempt may begin, the number of the job, and the number of the attempt.
    waiting = [(0.0, number, 1) for number in range(len(jobs))]
    running: dict[ray.ObjectRef, tuple[int, int]] = {}
    patience = Patience(options.cpus, options.node_wait)
    while waiting or running:
        patience.look(ray.nodes())
        # Twice as many as can run, so that no node waits for the driver.
        limit = max(2, 2 * int(ray.cluster_resources().get("CPU", 1) / options.cpus))
        while waiting and len(running) < limit and waiting[0][0] <= time.monotonic():
            _, number, count = heapq.heappop(waiting)
            given = (options.command, version, jobs[number], options.cpus, options.timeout)
            running[task.remote(*given)] = (number, count)
        if not running:
            time.sleep(0.1)
            continue
        for reference in ray.wait(list(running), timeout=1.0)[0]:
            number, count = running.pop(reference)
            job = jobs[number]
            try:
                outcome = ray.get(reference)
            except ray.exceptions.RayError as error:
                outcome = {"code": None, "error": f"worker or node died: {type(error).__name__}"}
            if outcome["code"] not in (0, 2) and count < options.attempts:
                print(printable(f"again: {job.name}: {outcome['error']}"))
                pause = time.monotonic() + PAUSE * 2 ** (count - 1)
                heapq.heappush(waiting, (pause, number, count + 1))
                continue
            if outcome["code"] == 0 and job.output is not None and scheme_of(job.output):
                places.forget_listings(job.output)
                outcome["result"] = places.output_stamps(job.output)
            status = "done" if outcome["code"] == 0 else "failed"
            size = sum(size or 0 for _, size, _ in job.files)
            entry = {"status": status, "path": job.name, "bytes": size, "attempts": count}
            yield entry | outcome | {"key": job.key(version)}


def run(options: argparse.Namespace) -> int:
    """Runs one operation. The result is the exit code."""
    version = subprocess.check_output([options.command, "--version"], text=True).strip()
    jobs = make_jobs(options)
    manifest = Manifest(options.manifest)
    with ThreadPoolExecutor(32) as pool:
        entries = list(pool.map(
            lambda job: finished(manifest, job, version, options.assume_unchanged), jobs))
    skipped = [entry for entry in entries if entry is not None]
    left = [job for job, entry in zip(jobs, entries) if entry is None]
    if places.why_unknown and not options.assume_unchanged:
        why = "; ".join(sorted(places.why_unknown))
        print(printable(f"warning: some files at addresses have no known version, so that their "
                        f"checkpoints are not skipped: {why}"), file=sys.stderr)
    ran = []
    # Standard output is for the summary alone, but Ray prints its warnings on it.
    with contextlib.redirect_stdout(sys.stderr):
        if left:
            ray.init(address=options.address, log_to_driver=False, logging_level="warning")
        begin = time.monotonic()
        for entry in work(left, version, options):
            manifest.add(entry)
            ran.append(entry)
            print(printable(f"{len(ran)}/{len(left)} {entry['status']}: {entry['path']}"))
        ray.shutdown()
    summary = summary_of(options.operation, skipped, ran, time.monotonic() - begin)
    if options.json:
        print(json.dumps(summary, indent=2))
    else:
        show(summary)
    codes = {entry["code"] for entry in ran} - {0}
    return 2 if codes == {2} else 1 if codes else 0


def summary_of(operation: str, skipped: list[dict], ran: list[dict], seconds: float) -> dict:
    """The document that --json prints, with the bytes and nodes of this run."""
    done = [entry for entry in ran if entry["status"] == "done"]
    failed = [entry for entry in ran if entry["status"] == "failed"]
    summary = {
        "operation": operation,
        "checkpoints": len(skipped) + len(ran),
        "skipped": len(skipped),
        "done": len(done),
        "failed": len(failed),
        "attempts": sum(entry["attempts"] for entry in ran),
        "bytes": sum(entry["bytes"] for entry in done),
        "seconds": round(seconds, 2),
        "done_by_node": collections.Counter(entry["node"] for entry in done),
        "failures": [{"path": entry["path"], "error": entry["error"]} for entry in failed],
    }
    if operation == "dedup":
        summary["duplicates"] = duplicates(skipped + done)
    return summary


def duplicates(entries: list[dict]) -> dict[str, list[dict]]:
    """Checkpoints that hold the same tensors, and tensors that are stored more than once.

    Equal means the same digest, dtype and shape, and for checkpoints the same names. XXH3 is no
    proof: use `safetensors diff` before you delete anything. Links to a file are not counted.
    """
    by_files: dict[tuple[str, ...], dict] = {}
    for entry in sorted(entries, key=lambda entry: entry["path"]):
        names = [name for name, _, _ in json.loads(entry["key"])[2]]
        data = [name for name in names if not name.endswith(INDEX_SUFFIX)] or [entry["path"]]
        real = (name if scheme_of(name) else os.path.realpath(name) for name in data)
        by_files.setdefault(tuple(real), entry)
    checkpoints: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    tensors: dict[tuple, list[tuple[str, int]]] = collections.defaultdict(list)
    for entry in by_files.values():
        stored = entry["bytes"] or sum(tensor[4] for tensor in entry["result"])
        checkpoints[json.dumps(sorted(entry["result"]))].append((entry["path"], stored))
        for name, digest, dtype, shape, size in entry["result"]:
            if size:
                tensors[digest, dtype, *shape].append((f"{entry['path']}: {name}", size))

    def groups(same: dict[Any, list[tuple[str, int]]]) -> list[dict]:
        found = [{"spare_bytes": (len(group) - 1) * group[0][1], "places": [at for at, _ in group]}
                 for group in same.values() if len(group) > 1]
        return sorted(found, key=lambda group: -group["spare_bytes"])

    return {"checkpoints": groups(checkpoints), "tensors": groups(tensors)}


def printable(text: str) -> str:
    """The text without anything that could steer a terminal: names may be hostile."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show(summary: dict) -> None:
    """Prints the summary as a table, and the largest groups of duplicates."""
    columns = [name for name, value in summary.items() if isinstance(value, (str, int, float))]
    print("  ".join(f"{name:>11}" for name in columns))
    print("  ".join(f"{summary[name]:>11}" for name in columns))
    for node, count in sorted(summary["done_by_node"].items()):
        print(f"node {node[:12]}: {count} done")
    for failure in summary["failures"]:
        print(printable(f"failed: {failure['path']}: {failure['error']}"))
    for kind, groups in summary.get("duplicates", {}).items():
        spare = sum(group["spare_bytes"] for group in groups)
        print(f"equal {kind}: {len(groups)} groups, {spare} bytes are stored more than once")
        for group in groups[:20]:
            print(printable(f"  {group['spare_bytes']} bytes: {', '.join(group['places'])}"))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options. What follows the first -- is the command's own."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("operation", choices=["convert", "verify", "digest", "dedup"])
    add("paths", nargs="*", metavar="PATH", help="a file, an index, a directory or an address")
    add("--list", metavar="FILE", help="a file with one path a line, or -")
    add("--out", metavar="DIR", help="where `convert` writes: a directory or an address")
    add("--root", metavar="DIR", help="outputs keep their place below this "
        "directory; by default each named directory, or the directory of a named file")
    add("--manifest", metavar="FILE", default="fleet.jsonl", help="default: %(default)s")
    add("--command", metavar="PATH", default="safetensors", help="the command, on every node")
    add("--address", help="of the Ray cluster; by default RAY_ADDRESS, else this machine alone")
    count = {"type": int, "choices": range(1, 1025), "metavar": "N"}
    add("--cpus", default=1, **count, help="processors and threads of a task, default 1")
    add("--node-wait", type=float, default=60.0, metavar="SECONDS",
        help="for a node with --cpus processors, default 60")
    add("--attempts", default=3, **count, help="of each checkpoint in one run, default 3")
    add("--timeout", type=float, metavar="SECONDS", help="of one attempt; by default none")
    add("--assume-unchanged", action="store_true",
        help="skip what is done at addresses whose version is not known")
    add("--json", action="store_true", help="print the summary as one JSON document")
    options = parser.parse_args(arguments[:at])
    options.arguments = arguments[at + 1 :]
    if (options.operation == "convert") != (options.out is not None):
        raise WrongUsage("--out DIR is needed by convert, and by nothing else")
    if options.out:
        places.check_out(options.out)
    if os.sep in options.command:
        options.command = os.path.abspath(options.command)
    options.out = absolute(options.out)
    options.root = absolute(options.root)
    return options


def absolute(path: str | None) -> str | None:
    """A path of the disk that is independent of the working directory, or an address."""
    path = path and places.local(path)
    return path if not path or scheme_of(path) else os.path.abspath(path)


if __name__ == "__main__":
    try:
        sys.exit(run(parse(sys.argv[1:])))
    except (WrongUsage, OSError, subprocess.SubprocessError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, WrongUsage) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
