#!/usr/bin/env python3
"""Tests the decisions of `fleet.py` before it starts anything, without Ray and the command."""

import contextlib
import json
import os
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

import places
from manifest import Manifest
from places import WrongUsage


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name).resolve()


def checked(*pairs: tuple[object, object]) -> None:
    """Checks these outputs of these inputs, with their files on the disk."""
    outputs = {str(path): str(output) for path, output in pairs}
    places.check_outputs(outputs, {path: places.files_of(path) for path in outputs})


class Outputs(unittest.TestCase):
    def refused(self, text: str, *pairs: tuple[object, object]) -> None:
        with self.assertRaises(WrongUsage) as caught:
            checked(*pairs)
        self.assertIn(text, str(caught.exception))

    def test_no_output_replaces_an_input(self) -> None:
        with temporary() as here:
            one, two, out = here / "a.safetensors", here / "out/a.safetensors", here / "out"
            checked((one, two))
            checked((one, out / "b.safetensors"), (two, out / "out/a.safetensors"))
            self.refused("would replace", (one, one))
            self.refused(f"would replace {two}", (one, two), (two, out / "out/a.safetensors"))
            self.refused(f"would replace {two}", (two, out / "out/a.safetensors"), (one, two))

    def test_no_output_replaces_a_shard_or_a_file_in_its_directory(self) -> None:
        with temporary() as here:
            index, shard = here / "m.safetensors.index.json", here / "m-1.safetensors"
            index.write_text(json.dumps({"weight_map": {"w": shard.name}}))
            other = here / "x/m.safetensors"
            self.refused("would replace", (index, here / "out/m"), (other, shard))
            # The output of an index is a directory, in which an old checkpoint is replaced.
            self.refused("would replace", (index, here / "x"), (other, here / "out/x.safetensors"))
            checked((index, here / "x/m"), (other, here / "out/x.safetensors"))

    def test_links_are_followed(self) -> None:
        with temporary() as here:
            real, link = here / "real", here / "link"
            real.mkdir()
            link.symlink_to(real)
            (here / "alias.safetensors").symlink_to(real / "a.safetensors")
            inside, out = real / "a.safetensors", here / "out.safetensors"
            other = here / "b.safetensors"
            self.refused("would replace", (inside, out), (other, link / "a.safetensors"))
            self.refused("would replace", (inside, out), (other, here / "alias.safetensors"))
            # The link itself is an input, too.
            alias = here / "alias.safetensors"
            self.refused("would replace", (alias, out), (other, alias))
            self.refused("would replace", (alias, out), (other, inside))

    def test_no_output_replaces_another(self) -> None:
        one, two = "/m/a.safetensors", "/n/a.safetensors"
        self.refused("is the output of", (one, "/out/a.safetensors"), (two, "/out/a.safetensors"))
        inside = ("/m/b/model.safetensors", "/out/b/model.safetensors")
        self.refused("would lie in", ("/m/b.safetensors.index.json", "/out/b"), inside)
        checked(("/m/b.safetensors.index.json", "/out/b"), (one, "/out/c/model.safetensors"))

    def test_addresses(self) -> None:
        one, two = "s3://b/m/a%20b.safetensors", "s3://b/n/c.safetensors"
        checked((one, "s3://b/out/a%20b.safetensors"), (two, "s3://b/out/c.safetensors"))
        self.refused("would replace", (one, two), (two, "s3://b/out/c.safetensors"))
        escaped = "s3a://b/m/%61%20b.safetensors"
        self.refused("would replace", (one, "s3://b/x.safetensors"), (two, escaped))


    def test_no_output_leaves_out(self) -> None:
        for name in ("...safetensors.index.json", "..safetensors.index.json",
                     ".safetensors.index.json", "x/...safetensors.index.json",
                     "x/.safetensors.index.json", ".."):
            for root, out in (("/m", "/o/small"), ("s3://b/m", "/o/small"), ("/m", "s3://b/o")):
                with self.assertRaises(WrongUsage, msg=(root, name)) as caught:
                    places.output_of(f"{root}/{name}", root, out)
                self.assertIn(name, str(caught.exception))
        for name, expected in (("a.safetensors.index.json", "/o/a"), ("", "/o"),
                               ("....safetensors", "/o/....safetensors")):
            self.assertEqual(places.output_of(f"/m/{name}", "/m", "/o"), expected)


class Indexes(unittest.TestCase):
    def test_only_regular_files_of_some_bytes_are_read(self) -> None:
        with temporary() as here:
            text = json.dumps({"weight_map": {"w": "m-1.safetensors"}})
            for kind in ("file", "fifo", "device", "directory", "large", "absent"):
                index = here / f"{kind}.safetensors.index.json"
                if kind == "file":
                    index.write_text(text)
                elif kind == "fifo":
                    os.mkfifo(index)
                elif kind == "device":
                    index.symlink_to("/dev/zero")
                elif kind == "directory":
                    index.mkdir()
                elif kind == "large":
                    index.write_text(text)
                    os.truncate(index, places.LARGEST_INDEX + 1)
                shards = [str(here / "m-1.safetensors")] if kind == "file" else []
                self.assertEqual(places.files_of(str(index)), [str(index), *shards])
            self.assertEqual(len(places.checkpoints_below(str(here), None)), 4)


class Names(unittest.TestCase):
    def test_names_that_are_not_utf8(self) -> None:
        name = os.fsdecode(b"/m/\xff.safetensors")
        self.assertEqual(places.output_of(name, "/m", "/out"), name.replace("/m/", "/out/"))
        with self.assertRaisesRegex(WrongUsage, "not UTF-8"):
            places.output_of(name, "/m", "s3://b")
        self.assertEqual(places.local("file:///m/%FF.safetensors"), name)
        self.assertEqual(places.local("file://" + name), name)

    def test_names_that_no_file_can_have(self) -> None:
        for name in ("/m/\0.safetensors", "/m/\ud800.safetensors"):
            self.assertEqual(places.stamp(name), (name, None, None))
            checked((name, "/out/a.safetensors"))


STAMPS = [["/m/a.safetensors", 8, 7]]
KEY = json.dumps(["1", ["convert", "--", "/m/a.safetensors", "/o"], STAMPS])
LINE = {"status": "done", "path": "/m/a.safetensors", "bytes": 8, "key": KEY, "result": STAMPS}


class Manifests(unittest.TestCase):
    def opened(self, content: bytes) -> Manifest:
        with temporary() as here:
            path = here / "fleet.jsonl"
            path.write_bytes(content)
            try:
                return Manifest(str(path))
            except WrongUsage:
                self.assertEqual(path.read_bytes(), content, "it must stay as it is")
                raise

    def test_lines_are_read(self) -> None:
        failed = {**LINE, "status": "failed", "key": KEY.replace("/o", "/p"), "result": None}
        lines = b"".join(json.dumps(line).encode() + b"\n" for line in (LINE, failed))
        for rest in (b"", b'{"stat', b'{"status": "done", "pa'):
            manifest = self.opened(lines + rest)
            self.assertEqual(manifest.done, {KEY: LINE})
            self.assertEqual(os.fstat(manifest.file.fileno()).st_size, len(lines))
            manifest.file.close()

    def test_a_damaged_line_is_named(self) -> None:
        good = json.dumps(LINE).encode() + b"\n"
        changes = ({"key": None}, {"key": "[]"}, {"key": "x"}, {"key": '["1", 5, []]'},
                   {"path": 7}, {"bytes": "8"}, {"status": 1}, {"result": None},
                   {"result": [["/o"]]}, {"result": [["/o", "8", 7]]}, {"result": 5},
                   {"key": KEY.replace('"convert"', '"digest"')},
                   {"key": KEY.replace("8, 7", "8")})
        bad = [json.dumps({**LINE, **change}).encode() for change in changes]
        bad += [good[:40], good[:-2] + b"\xff}", b'{"status": ' + b"[" * 100_000]
        for line in bad:
            with self.assertRaisesRegex(WrongUsage, "line 2 is damaged: .*", msg=line[:200]):
                self.opened(good + line + b"\n" + good)

    def test_another_file_is_no_manifest(self) -> None:
        for content in (b"text\n", b"text", b"\n", json.dumps(LINE).encode() + b"\n\0\0"):
            with self.assertRaisesRegex(WrongUsage, "not a manifest"):
                self.opened(content)


if __name__ == "__main__":
    unittest.main()
