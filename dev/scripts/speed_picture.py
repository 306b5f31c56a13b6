#!/usr/bin/env python3
"""Draws the pictures of docs/BENCHMARKS.md and of the README.

    dev/scripts/speed_picture.py            writes docs/speed.svg, and the tables of the README and of
                                        docs/BENCHMARKS.md, from docs/benchmarks.csv
    dev/scripts/speed_picture.py --check    fails if one of them has other numbers
    dev/scripts/speed_picture.py --growth NUMBERS.json PICTURE.svg
                                        draws how time and memory grow, and prints the exponents

Needs Python 3.9 and nothing else.
"""

import csv
import html
import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "speed.svg"
HEAD = "| work | instead of | first load in a process |  | again in the same process |  |"


def loads(row):
    """The rows of a load: the first one in a process, and later ones."""
    return f"{row}, first load in a process", f"{row}, again in the same process"


# The work, as the tables name it; the peer, as they name it and as docs/benchmarks.csv does; the rows of
# the first time in a process, and of later ones; whether the README has it.
MAPPED = ("`MmapedSafetensors`", "candle MmapedSafetensors")
LOAD = ("`candle::safetensors::load`", "candle load")
BURN = ("burn-store", "burn-store SafetensorsStore")
NPZ = ("`.npz` by ndarray-npy", "ndarray-npy, .npz")
COPIED = ("`safetensors`, copied", "safetensors, copied")
COLD = ("first load of 2 GiB into candle, page cache cold", None)
BUILDER = "VarBuilder over all tensors, 1 GiB of BF16 as BF16, order of a model"
ROWS = [
    ("load 2 GiB into candle", MAPPED, loads("load 2 GiB of 8 MiB tensors into candle"), True),
    ("the same", LOAD, loads("load 2 GiB of 8 MiB tensors into candle"), True),
    ("the same, page cache cold", MAPPED, COLD, False),
    ("load 20,000 × 512 B into candle", LOAD, loads("load 20,000 × 512 B into candle"), False),
    (
        "1 GiB of BF16 as F32 into candle",
        ("`MmapedSafetensors`, `to_dtype`", "candle MmapedSafetensors, to_dtype"),
        loads("load 1 GiB of BF16 into candle as F32"),
        False,
    ),
    (
        "`VarBuilder`, 1 GiB of BF16",
        ("`from_mmaped_safetensors`", "candle from_mmaped_safetensors"),
        loads(BUILDER),
        False,
    ),
    (
        "1 GiB of GGUF as `QTensor`s, mapped",
        ("candle", "candle gguf_file"),
        loads("load 1 GiB of GGUF as QTensors, mapped"),
        False,
    ),
    ("load 1 GiB into a burn module", BURN, loads("load 64 × (2048×2048) into burn"), True),
    ("4,000 small tensors into it", BURN, loads("load 4,000 × (16×16) into burn"), False),
    ("read an ndarray array of 256 MiB", NPZ, loads("read an array of 256 MiB"), True),
    ("the same", COPIED, loads("read an array of 256 MiB"), False),
    ("20,000 small arrays of ndarray", NPZ, loads("read 20,000 small arrays"), False),
    ("the same", COPIED, loads("read 20,000 small arrays"), False),
    (
        "save 2 GiB from candle",
        ("`candle::safetensors::save`", "candle save"),
        (None, "save 2 GiB from candle"),
        True,
    ),
]


def read_table():
    """The lines of the table: (row, by) -> (median, "ours is"). Ours has no ratio."""
    lines = {}
    with open(ROOT / "docs/benchmarks.csv", encoding="utf-8", newline="") as table:
        for line in csv.DictReader(table):
            by = line["by"] if line["ours is"] else "ours"
            lines[line["row"], by] = (line["median"], line["ours is"])
    return lines


def digits(ratio):
    """`7.50× as fast` as a number."""
    return float(ratio.split("×")[0])


def time(cell):
    """`162.40 ms` with three digits."""
    number, unit = cell.split()
    return f"{float(number):#.3g}".rstrip(".") + " " + unit


def rounded(ratio):
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×"


def measured(lines, row, peer):
    """Our median, that of the peer, and how many times as fast ours is."""
    if (row, peer) not in lines:
        return None
    ours, (theirs, ratio) = lines[row, "ours"][0], lines[row, peer]
    return time(ours), time(theirs), digits(ratio)


def table(lines, is_readme):
    rows = [HEAD, "|---|---|---|---|---|---|"]
    for work, (name, peer), names, in_readme in ROWS:
        found = [measured(lines, row, peer) for row in names]
        if not any(found) or is_readme and not in_readme:
            continue
        cells = [work, name]
        for numbers in found:
            if numbers is None:
                cells += ["–", ""]
            else:
                ours, theirs, ratio = numbers
                cells += [f"{ours}, not {theirs}", f"**{rounded(ratio)}**"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def pages(lines):
    """Each page with a table, and its text with the numbers of today."""
    for page in (ROOT / "README.md", ROOT / "docs" / "BENCHMARKS.md"):
        before, old = page.read_text(encoding="utf-8").split(HEAD)
        new = table(lines, page.name == "README.md")
        yield page, before + new + old[old.index("\n\n") :]


def picture(lines):
    left, width, bar, gap, top = 330, 700, 14, 20, 34
    shown = [
        (work, name, [measured(lines, row, peer) for row in rows])
        for work, (name, peer), rows, in_readme in ROWS
        if in_readme
    ]
    largest = max((found[2] for _, _, pair in shown for found in pair if found), default=1)
    scale = (width - left - 60) / largest
    body, y = [], top
    for work, name, pair in shown:
        label = work if work != "the same" else "load 2 GiB into candle"
        text = html.escape(f"{label}, instead of")
        body.append(f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{text}</text>')
        name = html.escape(name.replace("`", ""))
        body.append(
            f'<text x="{left - 10}" y="{y + 28}" text-anchor="end" fill="#555">{name}</text>'
        )
        for found, colour in zip(pair, ("#e08a00", "#1f6feb")):
            if found:
                length = found[2] * scale
                body.append(
                    f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar}" '
                    f'fill="{colour}"/>'
                )
                body.append(
                    f'<text x="{left + length + 6:.1f}" y="{y + 12}">{rounded(found[2])}</text>'
                )
            y += bar + 2
        y += gap
    one = left + scale
    body.append(
        f'<line x1="{one:.1f}" y1="{top - 6}" x2="{one:.1f}" y2="{y - gap + 4}" '
        'stroke="#888" stroke-dasharray="3 2"/>'
    )
    legend = (
        f'<rect x="{left}" y="8" width="12" height="12" fill="#e08a00"/>'
        f'<text x="{left + 18}" y="18">first load in a process</text>'
        f'<rect x="{left + 160}" y="8" width="12" height="12" fill="#1f6feb"/>'
        f'<text x="{left + 178}" y="18">again (dashed: as fast)</text>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" '
            f'viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{y}" fill="#fff"/>',
            legend,
            *body,
            "</svg>",
            "",
        ]
    )


COLOURS = {"ours": "#1f6feb", "peer": "#888", "limit": "#bbb", "memory": "#e08a00"}


def families(numbers):
    """Family -> (unit, {contender: (role, [(amount, seconds, memory)])}), as they were measured."""
    found = {}
    for row in numbers["rows"]:
        point = row["point"]
        if point is None:
            continue
        unit, lines = found.setdefault(point["family"], (point["unit"], {}))
        for entry in row["contenders"]:
            # Of rows by threads, the name of the contender is the number.
            name = "ours" if entry["role"] == "ours" else entry["name"]
            line = lines.setdefault(name, (entry["role"], []))[1]
            line.append((point["amount"], entry["median_seconds"], entry["peak_memory_bytes"]))
    return {name: found[name] for name in found if len(found[name][1]["ours"][1]) > 1}


def exponent(points):
    """The slope of the line of least squares through the logarithms; `None` if it has none."""
    points = [(math.log(x), math.log(y)) for x, y in points if y]
    if len(points) < 2:
        return None
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    squares = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / squares


def seconds(value):
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def amount(value, unit):
    if unit != "bytes":
        return f"{value:,}"
    for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.0f} {name}"
    return f"{value} B"


def growth_table(found):
    """How ours grows: the exponent of time over all amounts, and of the last step."""
    columns = "work | from | to | time at the end | exponent | of the last step | memory at the end"
    rows = [f"| {columns} |", "|---|---|---|---|---|---|---|"]
    for family, (unit, lines) in found.items():
        points = lines["ours"][1]
        times = [(x, y) for x, y, _ in points]
        memory = points[-1][2]
        cells = [
            family,
            amount(points[0][0], unit) + ("" if unit == "bytes" else f" {unit}"),
            amount(points[-1][0], unit),
            seconds(points[-1][1]),
            f"{exponent(times):.2f}",
            f"{exponent(times[-2:]):.2f}",
            "–" if memory is None else f"{math.ceil(memory / (1 << 20))} MiB",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def panel(left, top, family, unit, lines):
    """Time over amount, both by powers of ten; memory with a scale of its own."""
    width, height = 230, 120
    everything = [point for _, points in lines.values() for point in points]
    xs = [math.log10(x) for x, _, _ in everything]
    ys = [math.log10(y) for _, y, _ in everything]
    sizes = [math.log10(size) for _, _, size in everything if size]

    def curve(points, low, high, colour, dash=""):
        span = max(high - low, 0.5)
        x_span = max(max(xs) - min(xs), 0.1)
        at = [
            (
                left + (math.log10(x) - min(xs)) / x_span * width,
                top + height - (math.log10(y) - low) / span * height,
            )
            for x, y in points
            if y
        ]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'

    body = [
        f'<text x="{left}" y="{top - 22}" font-weight="bold">{html.escape(family)}</text>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#ccc"/>',
    ]
    for role, points in lines.values():
        body.append(curve([(x, y) for x, y, _ in points], min(ys), max(ys), COLOURS[role]))
    of_ours = lines["ours"][1]
    if sizes:
        dash = ' stroke-dasharray="4 3"'
        sized = [(x, size) for x, _, size in of_ours]
        body.append(curve(sized, min(sizes), max(sizes), COLOURS["memory"], dash))
    times = [(x, y) for x, y, _ in of_ours]
    slope = f"time ∝ n^{exponent(times):.2f}, at the end n^{exponent(times[-2:]):.2f}"
    ends = f"{amount(of_ours[0][0], unit)} to {amount(of_ours[-1][0], unit)}"
    ends += "" if unit == "bytes" else f" {unit}"
    ours = f"{seconds(of_ours[0][1])} to {seconds(of_ours[-1][1])}"
    if of_ours[-1][2] is not None:
        first, last = (math.ceil(of_ours[end][2] / (1 << 20)) for end in (0, -1))
        ours += f", {first} to {last} MiB"
    body += [
        f'<text x="{left}" y="{top - 7}" fill="#555">{slope}</text>',
        f'<text x="{left}" y="{top + height + 15}" fill="#555">{html.escape(ends)}</text>',
        f'<text x="{left}" y="{top + height + 29}" fill="#555">ours: {ours}</text>',
    ]
    return body


def growth_picture(found):
    columns, across, down = 3, 275, 215
    width = columns * across + 20
    height = 60 + down * math.ceil(len(found) / columns)
    body, x = [], 20
    memory = "our memory, on a scale of its own"
    legend = {"ours": "ours", "peer": "peer", "limit": "limit", "memory": memory}
    for role, name in legend.items():
        body.append(f'<rect x="{x}" y="10" width="12" height="4" fill="{COLOURS[role]}"/>')
        body.append(f'<text x="{x + 18}" y="16">{name}</text>')
        x += 80
    for index, (family, (unit, lines)) in enumerate(found.items()):
        place = 20 + index % columns * across, 65 + index // columns * down
        body += panel(*place, family, unit, lines)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def main():
    if sys.argv[1:2] == ["--growth"] and len(sys.argv) == 4:
        found = families(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
        Path(sys.argv[3]).write_text(growth_picture(found), encoding="utf-8")
        print(growth_table(found))
        return
    lines = read_table()
    files = [(PICTURE, picture(lines)), *pages(lines)]
    if sys.argv[1:] == ["--check"]:
        for file, text in files:
            if file.read_text(encoding="utf-8") != text:
                sys.exit(f"{file} has other numbers: run dev/scripts/speed_picture.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        for file, text in files:
            file.write_text(text, encoding="utf-8")


main()
