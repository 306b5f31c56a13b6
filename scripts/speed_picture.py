#!/usr/bin/env python3
"""Writes docs/speed.svg, and the table of the README beside it, from BENCHMARKS.md.

    scripts/speed_picture.py            writes both, as `cargo bench -p benches -- --into` does
    scripts/speed_picture.py --check    fails if the picture or the README have other numbers

Needs Python 3.9 and nothing else.
"""

import html
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "speed.svg"
README = ROOT / "README.md"
HEAD = "| work | instead of | warm |  | first load |  |"

# The work, as the README names it; the peer, as it names it and as BENCHMARKS.md does; the row of
# files and memory that are warm, and the row of a process that does the work once.
ROWS = [
    (
        "load 2 GiB into candle",
        ("`MmapedSafetensors`", "candle MmapedSafetensors"),
        "load 2 GiB of 8 MiB tensors into candle",
        "first load of 2 GiB into candle, page cache cold",
    ),
    (
        "the same",
        ("`candle::safetensors::load`", "candle load"),
        "load 2 GiB of 8 MiB tensors into candle",
        "first load of 2 GiB into candle, page cache cold",
    ),
    (
        "load 1 GiB into a burn module",
        ("burn-store", "burn-store SafetensorsStore"),
        "load 64 × (2048×2048) into burn",
        None,
    ),
    (
        "read an ndarray array of 256 MiB",
        ("`.npz` by ndarray-npy", "ndarray-npy, .npz"),
        "read an array of 256 MiB, warm",
        "read an array of 256 MiB, fresh process",
    ),
    (
        "save 2 GiB from candle",
        ("`candle::safetensors::save`", "candle save"),
        "save 2 GiB from candle",
        None,
    ),
]


def read_table():
    """The lines of all tables: (row, by) -> (median, "ours is"). Ours has no ratio."""
    lines, row = {}, None
    for line in (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) < 7:
            continue
        is_ours = bool(cells[0])
        row = cells[0] or row
        lines[row, "ours" if is_ours else cells[1]] = (cells[2], cells[6])
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
    if row is None:
        return None
    ours, (theirs, ratio) = lines[row, "ours"][0], lines[row, peer]
    return time(ours), time(theirs), digits(ratio)


def table(lines):
    rows = [HEAD, "|---|---|---|---|---|---|"]
    for work, (name, peer), warm, first in ROWS:
        cells = [work, name]
        for found in (measured(lines, warm, peer), measured(lines, first, peer)):
            if found is None:
                cells += ["–", ""]
            else:
                ours, theirs, ratio = found
                cells += [f"{ours}, not {theirs}", f"**{rounded(ratio)}**"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def picture(lines):
    left, width, bar, gap, top = 330, 700, 14, 20, 34
    largest = max(
        found[2]
        for _, (_, peer), *rows in ROWS
        for found in (measured(lines, row, peer) for row in rows)
        if found
    )
    scale = (width - left - 60) / largest
    body, y = [], top
    for work, (name, peer), warm, first in ROWS:
        label = work if work != "the same" else "load 2 GiB into candle"
        text = html.escape(f"{label}, instead of")
        body.append(f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{text}</text>')
        name = html.escape(name.replace("`", ""))
        body.append(
            f'<text x="{left - 10}" y="{y + 28}" text-anchor="end" fill="#555">{name}</text>'
        )
        for row, colour in ((warm, "#1f6feb"), (first, "#e08a00")):
            found = measured(lines, row, peer)
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
        f'<rect x="{left}" y="8" width="12" height="12" fill="#1f6feb"/>'
        f'<text x="{left + 18}" y="18">warm</text>'
        f'<rect x="{left + 70}" y="8" width="12" height="12" fill="#e08a00"/>'
        f'<text x="{left + 88}" y="18">first load (dashed line: as fast as the other)</text>'
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


def main():
    lines = read_table()
    if sys.argv[1:] == ["--check"]:
        if table(lines) not in README.read_text(encoding="utf-8"):
            sys.exit(f"README.md should have this table:\n\n{table(lines)}")
        if PICTURE.read_text(encoding="utf-8") != picture(lines):
            sys.exit("docs/speed.svg has other numbers: run scripts/speed_picture.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        before, old = README.read_text(encoding="utf-8").split(HEAD)
        after = old[old.index("\n\n") :]
        README.write_text(before + table(lines) + after, encoding="utf-8")
        PICTURE.write_text(picture(lines), encoding="utf-8")


main()
