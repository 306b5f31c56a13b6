"""The manifest of `fleet.py`: JSON lines, each about a checkpoint that is done or has failed."""

import fcntl
import json
import os

from places import WrongUsage

LINE_BEGIN = b'{"status": '  # of every line
NOTHING = type(None)
ENTRY = {"status": str, "path": str, "bytes": int, "key": str}
STAMP = (str, (int, NOTHING), (int, str, NOTHING))
# What the rows of a result are, by the subcommand. That of `verify` is not read again.
ROWS = {"convert": STAMP, "digest": (str, str, str, list, int)}


class Manifest:
    """A manifest that no other run uses."""

    def __init__(self, path: str):
        self.file = open(path, "a+b")
        try:
            self.done = self.read(path)
        except WrongUsage:
            self.file.close()
            raise

    def read(self, path: str) -> dict[str, dict]:
        """The entries of finished items, by their keys. The path is for messages."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WrongUsage(f"{path}: another run uses this manifest") from None
        self.file.seek(0)
        *lines, unfinished = self.file.read().split(b"\n")
        # A killed driver may leave a last line without end, which is removed. A file of another
        # kind that was named by mistake must stay as it is.
        known = all(line.startswith(LINE_BEGIN) for line in lines)
        if not known or not LINE_BEGIN.startswith(unfinished[: len(LINE_BEGIN)]):
            raise WrongUsage(f"{path}: this file is not a manifest")
        done: dict[str, dict] = {}
        for number, line in enumerate(lines, 1):
            try:
                entry = entry_of(line)
            except (ValueError, RecursionError) as error:
                raise WrongUsage(f"{path}: line {number} is damaged: {error}; without that line, "
                                 "its checkpoint is done again") from None
            if entry["status"] == "done":
                done[entry["key"]] = entry
        self.file.truncate(sum(len(line) + 1 for line in lines))
        return done

    def add(self, entry: dict) -> None:
        self.file.write(json.dumps(entry).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def entry_of(line: bytes) -> dict:
    """The entry of a line. A ValueError has the problem."""
    entry = json.loads(line)
    for name, kind in ENTRY.items():
        if not isinstance(entry.get(name), kind):
            raise ValueError(f"{name!r} should be {kind.__name__}, found {entry.get(name)!r:.80}")
    try:
        _, (operation, *_), files = json.loads(entry["key"])
    except (TypeError, ValueError):
        raise ValueError(f"'key' is malformed: {entry['key']!r:.80}") from None
    tables = [("key", files, STAMP)]
    if entry["status"] == "done" and operation in ROWS:
        tables.append(("result", entry.get("result"), ROWS[operation]))
    for name, rows, kinds in tables:
        if not isinstance(rows, list) or not all(is_row(row, kinds) for row in rows):
            raise ValueError(f"{name!r} is malformed: {rows!r:.80}")
    return entry


def is_row(row: object, kinds: tuple) -> bool:
    """Whether this is a list of values of these kinds."""
    return isinstance(row, list) and len(row) == len(kinds) and all(map(isinstance, row, kinds))
