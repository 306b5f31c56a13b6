#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy>=2", "matplotlib>=3.9"]
# ///
"""Simulates how 1 to 1,024 ranks read a checkpoint of 1 TB from a shared store.

    pip install numpy matplotlib
    growth.py                          a table, some minutes; ../README.md has some of its rows
    growth.py --picture growth.png     the same, and the picture
    growth.py --check                  compares the simulation with what can be computed by hand
    growth.py --most 64 --servers 10   another store, and fewer ranks

No number here is measured: the defaults of `Machines` are assumptions. examples/distributed/README.md says
what the model leaves out.

The model: each rank reads its parts of the files one file after another, with some requests always
under way. Each file lies on one server of the store. At each moment a rank reads at the least of
three rates: its own, which latency and the number of its requests limit; its share of the server's
rate, which is divided equally among the ranks that read from it; and its share of its node's
network. What one rank cannot use of its share is not given to others. The rates hold until some
rank has finished its part of a file. Then they are computed anew.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np


@dataclasses.dataclass(frozen=True)
class Machines:
    """The store, the network, the nodes and the checkpoint. Sizes in bytes, times in seconds."""

    checkpoint: float = 1e12
    files: int = 200
    tensor: float = 100e6  # a typical one; all have this size
    servers: int = 50
    server_rate: float = 2e9  # bytes a second
    request_cost: float = 100e-6  # that a server spends on each request, whatever its size
    latency: float = 5e-3  # of a request, without the time for its data
    request: float = 4 * 2**20  # the most bytes of one: the loader's piece of work
    requests: int = 8  # that a rank has under way: the loader's threads
    ranks_a_node: int = 8
    node_rate: float = 25e9  # of a node's network, in each direction: 200 Gbit/s


@dataclasses.dataclass(frozen=True)
class Result:
    """The time until the last rank has its data, and the bytes that the store has sent."""

    seconds: float
    bytes_read: float


def served(machines: Machines, request: float) -> float:
    """The bytes a second that one server sends in requests of this size."""
    return request / (machines.request_cost + request / machines.server_rate)


def read(machines: Machines, files: np.ndarray, sizes: np.ndarray, request: float) -> Result:
    """Simulates ranks that each read `sizes[rank]` bytes of `files[rank]`, from left to right.

    Both have the shape (ranks, steps). The headers of all files are read before.
    """
    ranks, steps = files.shape
    # Every server has the same number of files, but which ones is left to chance.
    server_of = np.random.default_rng(1).permutation(machines.files) % machines.servers
    node = np.arange(ranks) // machines.ranks_a_node
    one = machines.latency + machines.request_cost + request / machines.server_rate
    own_rate = machines.requests * request / one
    server_rate = served(machines, request)

    # A header costs a request. All ranks ask all servers at once.
    asked = machines.files / machines.requests * (machines.latency + machines.request_cost)
    busy = ranks * machines.files / machines.servers * machines.request_cost
    seconds = max(asked, busy)

    rank = np.arange(ranks)
    step = np.zeros(ranks, dtype=int)
    left = sizes[:, 0].astype(float)
    while rank.size:
        # Those that have nothing to read in this step go on to the next one.
        done = left <= 1.0
        if done.any():
            step[done] += 1
            going = step < steps
            rank, step, left, done = rank[going], step[going], left[going], done[going]
            left[done] = sizes[rank[done], step[done]]
            continue
        server = server_of[files[rank, step]]
        at_server = np.bincount(server, minlength=machines.servers)[server]
        at_node = np.bincount(node[rank])[node[rank]]
        shares = np.minimum(server_rate / at_server, machines.node_rate / at_node)
        rate = np.minimum(own_rate, shares)
        passed = (left / rate).min()
        left -= rate * passed
        seconds += passed
    return Result(seconds, float(sizes.sum()))


# The files that each rank reads one after another, and the share of each that it reads then. Both
# have the shape (ranks, steps).
Order = Callable[[Machines, int], tuple[np.ndarray, np.ndarray]]


def same(machines: Machines, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Every rank begins with the first file."""
    files = np.tile(np.arange(machines.files), (ranks, 1))
    return files, np.ones(files.shape)


def rotated(machines: Machines, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Rank r begins at the share r / ranks of all tensors, as `RankPlan::read` does.

    That may be inside a file, whose beginning is then read last.
    """
    begin = np.arange(ranks) * machines.files / ranks
    files = (np.floor(begin).astype(int)[:, None] + np.arange(machines.files + 1)) % machines.files
    shares = np.ones(files.shape)
    shares[:, -1] = begin % 1
    shares[:, 0] -= begin % 1
    return files, shares


def shuffled(machines: Machines, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Every rank has its own order, by chance."""
    chance = np.random.default_rng(0)
    files = np.stack([chance.permutation(machines.files) for _ in range(ranks)])
    return files, np.ones(files.shape)


def parts(machines: Machines, ranks: int, order: Order) -> Result:
    """Each rank reads its part of every tensor, and nothing else.

    The part is contiguous, as if every tensor were split along its first dimension. With many
    ranks the parts are smaller than a request, so there are more requests for the same bytes.
    """
    files, shares = order(machines, ranks)
    sizes = shares * (machines.checkpoint / machines.files / ranks)
    return read(machines, files, sizes, min(machines.request, machines.tensor / ranks))


def everything(machines: Machines, ranks: int, order: Order) -> Result:
    """Each rank reads every tensor whole."""
    files, shares = order(machines, ranks)
    return read(machines, files, shares * (machines.checkpoint / machines.files), machines.request)


def broadcast(machines: Machines, ranks: int) -> Result:
    """One rank reads everything, and sends it on piece by piece while it reads.

    Each node passes each piece to the next one while it receives the one after it.
    """
    result = everything(machines, 1, same)
    nodes = math.ceil(ranks / machines.ranks_a_node)
    if nodes == 1:
        return result
    passing = (nodes - 1) * machines.request / machines.node_rate
    sent = max(result.seconds, machines.checkpoint / machines.node_rate) + passing
    return Result(sent, result.bytes_read)


def gathered(machines: Machines, ranks: int) -> Result:
    """Each rank reads one stripe of the checkpoint. Then all send their stripes to all.

    Within a node nothing is sent. The sending begins when the last stripe has been read.
    """
    edges = np.arange(ranks + 1) * (machines.files / ranks)
    first = np.floor(edges[:-1]).astype(int)
    steps = math.ceil(machines.files / ranks) + 1
    files = first[:, None] + np.arange(steps)
    begin = np.maximum(files, edges[:-1, None])
    end = np.minimum(files + 1, edges[1:, None])
    sizes = np.maximum(end - begin, 0) * (machines.checkpoint / machines.files)
    result = read(machines, files % machines.files, sizes, machines.request)
    nodes = math.ceil(ranks / machines.ranks_a_node)
    others = machines.checkpoint * (nodes - 1) / nodes
    return Result(result.seconds + others / machines.node_rate, result.bytes_read)


# What is compared: the name, and the simulation of a number of ranks.
STRATEGIES: dict[str, Callable[[Machines, int], Result]] = {
    "parts, same order": lambda machines, ranks: parts(machines, ranks, same),
    "parts, shuffled": lambda machines, ranks: parts(machines, ranks, shuffled),
    "parts, rotated": lambda machines, ranks: parts(machines, ranks, rotated),
    "everything, same order": lambda machines, ranks: everything(machines, ranks, same),
    "everything, shuffled": lambda machines, ranks: everything(machines, ranks, shuffled),
    "everything, rotated": lambda machines, ranks: everything(machines, ranks, rotated),
    "one reads, broadcast": broadcast,
    "stripes, all-gather": gathered,
}


def check() -> None:
    """Compares the simulation with cases that can be computed by hand."""

    def near(found: float, expected: float, what: str) -> None:
        assert abs(found - expected) <= 1e-6 * expected, f"{what}: {found}, expected {expected}"
        print(f"{what}: {found:.3f} s")

    free = {"request_cost": 0.0, "latency": 1e-9, "files": 50}
    machines = Machines(**free)
    near(parts(machines, 1, same).seconds, 500, "one rank reads 1 TB from one server at a time")
    near(parts(machines, 16, same).seconds, 500, "16 ranks that all read from the same server")
    near(parts(machines, 50, rotated).seconds, 10, "50 ranks, each at another server")
    near(everything(machines, 100, rotated).seconds, 1000, "two whole readers at each server")
    narrow = Machines(**free, node_rate=1e9)
    near(parts(narrow, 8, rotated).seconds, 1000, "8 ranks share the network of one node")
    slow = Machines(request_cost=0.0, latency=1.0, requests=1, server_rate=1e15, request=1e6)
    near(parts(slow, 1, same).seconds, 200 + 1e6, "a million requests of a second, and 200 headers")
    costly = Machines(latency=1e-9, request_cost=1e-3, request=2e6, requests=1000, files=50)
    near(parts(costly, 50, rotated).seconds, 20 + 0.05, "a request costs as much as its bytes")
    near(broadcast(machines, 8).seconds, 500, "a node needs no network to broadcast")
    near(gathered(machines, 400).seconds, 10 + 40 * 49 / 50, "stripes at full rate, then gathered")
    for ranks in (1, 3, 8, 70):
        for name, simulate in STRATEGIES.items():
            result = simulate(Machines(), ranks)
            least = result.bytes_read / (Machines().servers * Machines().server_rate)
            assert result.seconds >= least, f"{name} of {ranks} ranks is faster than the store"
            times = ranks if name.startswith("everything") else 1
            assert math.isclose(result.bytes_read, times * 1e12), f"{name} reads other bytes"
    print("no strategy is faster than the store, and each reads the bytes that it should")


def draw(path: Path, results: dict[str, dict[int, Result]], machines: Machines) -> None:
    """Draws the time and the bytes that the store sends, over the number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, sizes) = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    markers = dict(zip(results, "os^vDP*X"))
    for name, by_ranks in results.items():
        style = {"marker": markers[name], "markersize": 5, "label": name, "linewidth": 1.4}
        ranks = list(by_ranks)
        times.plot(ranks, [result.seconds for result in by_ranks.values()], **style)
        sizes.plot(ranks, [result.bytes_read / 1e12 for result in by_ranks.values()], **style)
    at_best = machines.checkpoint / (machines.servers * machines.server_rate)
    times.axhline(at_best, color="grey", linestyle=":", linewidth=1)
    times.text(1, at_best * 1.08, "the store sends 1 TB at its full rate", color="grey", fontsize=8)
    times.set_ylabel("seconds until the last rank has its data")
    sizes.set_ylabel("TB that the store sends")
    for axes in (times, sizes):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("ranks")
        axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
        axes.grid(alpha=0.25)
    times.legend(fontsize=8)
    most = max(next(iter(results.values())))
    sizes.text(most / 8, most * 0.4, "everything: 1 TB for each rank", fontsize=8, ha="right")
    sizes.text(most, 1.15, "parts, broadcast, stripes: 1 TB together", fontsize=8, ha="right")
    figure.suptitle("Simulated, not measured: ranks read a checkpoint of 1 TB from a shared store")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with cases done by hand")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the results")
    parser.add_argument("--most", type=int, default=1024, metavar="N", help="the most ranks")
    for field in dataclasses.fields(Machines):
        name = "--" + field.name.replace("_", "-")
        default = {"type": field.type, "default": field.default, "help": "default %(default)s"}
        parser.add_argument(name, **default)
    options = parser.parse_args()
    if options.check:
        check()
        return
    fields = [field.name for field in dataclasses.fields(Machines)]
    machines = Machines(**{name: getattr(options, name) for name in fields})
    counts = [2**power for power in range(options.most.bit_length()) if 2**power <= options.most]
    results: dict[str, dict[int, Result]] = {name: {} for name in STRATEGIES}
    print("| ranks | " + " | ".join(STRATEGIES) + " |")
    print("|---:|" + "---:|" * len(STRATEGIES))
    for ranks in counts:
        for name, simulate in STRATEGIES.items():
            results[name][ranks] = simulate(machines, ranks)
        cells = [f"{results[name][ranks].seconds:,.0f} s" for name in STRATEGIES]
        print(f"| {ranks:,} | " + " | ".join(cells) + " |", flush=True)
    if options.picture:
        draw(options.picture, results, machines)


if __name__ == "__main__":
    main()
