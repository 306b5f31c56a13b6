"""The checks of `test_fleet.py` that need a bucket, on a local server of S3 (moto).

Without moto, or with a command that was built without the feature `remote`, they are skipped. So
are the checks that need s3fs, where it is not installed. A line reports each skipped check.
"""

import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import places

SECRET = "very-secret-key"
BUCKET = "bucket"
BASE = f"s3://{BUCKET}"


@contextlib.contextmanager
def s3_server(command: Path) -> Iterator[dict[str, str]]:
    """The environment in which S3 is a server of moto. It is empty if there can be none."""
    features = subprocess.check_output([command, "--version"], text=True)
    missing = [] if "remote" in features else ["the feature `remote` of the command"]
    missing += [] if importlib.util.find_spec("moto") else ["moto (PyPI: moto[server])"]
    if missing:
        print(f"-- BUCKETS ARE NOT TESTED. Missing: {' and '.join(missing)}.", flush=True)
        yield {}
        return
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ALLOW_HTTP": "true",
               "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
               "AWS_ACCESS_KEY_ID": "AKIATESTING", "AWS_SECRET_ACCESS_KEY": SECRET}
    finally:
        server.stop()


def client(s3: dict[str, str]):
    import boto3  # comes with moto

    return boto3.client("s3", endpoint_url=s3["AWS_ENDPOINT_URL"], region_name=s3["AWS_REGION"],
                        aws_access_key_id=s3["AWS_ACCESS_KEY_ID"], aws_secret_access_key=SECRET)


def in_buckets(make: type, s3: dict[str, str]) -> Callable[..., str]:
    """All checks, as one check of `test_fleet.py`. `make` is its `Fleet`."""

    def buckets(cluster: object, directory: Path, command: Path, models: Path) -> str:
        names_are_safe()
        if not s3:
            return "NOT TESTED, see above"
        objects = client(s3)
        objects.create_bucket(Bucket=BUCKET)
        files = sorted(models.rglob("*.safetensors"))[:2]
        for name, file in zip(("0/model", "a b%41/model"), files):
            objects.put_object(Bucket=BUCKET, Key=f"models/{name}.safetensors",
                               Body=file.read_bytes())
        shards = [command, "convert", files[0], f"{BASE}/models/shards", "--max-shard-size", "4096"]
        subprocess.run(shards, check=True, capture_output=True, env=os.environ | s3)
        told = [without_fsspec(make, directory, command, objects),
                nothing_secret_is_shown(make, directory, command, objects)]
        if importlib.util.find_spec("s3fs"):
            told.append(versions_and_trees(make, directory, command, objects, files, s3))
        else:
            print("-- s3fs: NOT INSTALLED. Versions and lists of buckets are not tested.")
        return "; ".join(told)

    return buckets


def names_are_safe() -> None:
    """Where outputs go, and how they are shown: this needs no server."""
    for name in ("a/../../x", "/x", "%2e%2e/x", "a/%2E/x", "a%2F..%2F..%2Fx"):
        try:
            output = places.output_of(f"s3://b/m/{name}.safetensors", "s3://b/m/", "/out")
        except places.WrongUsage:
            continue
        raise AssertionError(f"{name}: {output}")
    for path, root, out, expected in (
        ("s3://b/m/a%20b.safetensors", "s3://b/m", "/out", "/out/a b.safetensors"),
        ("s3://b/m/a%20b.safetensors", "s3://b/m/", "gs://c", "gs://c/a%20b.safetensors"),
        ("s3://b/m/a.safetensors.index.json", "s3://", "/out", "/out/b/m/a"),
        ("https://h/a.safetensors?X-Signature=s", "https://h/", "/out", "/out/a.safetensors"),
        ("hf://owner/name", "hf://owner/", "s3://b/x/", "s3://b/x/name"),
        ("/m/a b#.safetensors", "/m", "s3://b", "s3://b/a%20b%23.safetensors"),
    ):
        assert places.output_of(path, root, out) == expected, (path, root, out)
    for path, expected in (
        ("https://u:p@host/a@b?X-Signature=c#d", "https://host/a@b"),
        ("hf://owner/name@v1/a", "hf://owner/name@v1/a"),
        ("s3://bucket", "s3://bucket"),
        ("a?b/c#d", "a?b/c#d"),
    ):
        assert places.shown(path) == expected, path


def without_fsspec(make: type, directory: Path, command: Path, objects) -> str:
    """Addresses are worked on, but not skipped unless that is asked for. None is listed."""
    absent = directory / "absent"
    absent.mkdir()
    (absent / "fsspec.py").write_text("raise ImportError('No module named fsspec')\n")
    fleet = make(directory, command, "no_fsspec")
    fleet.environment["PYTHONPATH"] = str(absent)
    arguments = ["verify", f"{BASE}/models/0/model.safetensors", f"{BASE}/models/shards"]
    for _ in range(2):
        summary = fleet.run(*arguments)
        assert (summary["done"], summary["skipped"]) == (2, 0), "an unknown version was skipped"
    started = fleet.started()
    summary = fleet.run(*arguments, "--assume-unchanged")
    assert summary["skipped"] == 2 and fleet.started() == started, summary
    out = directory / "from_bucket"
    convert = ["convert", *arguments[1:], "--out", out, "--root", f"{BASE}/models"]
    assert fleet.run(*convert)["done"] == 2
    assert (out / "0" / "model.safetensors").is_file() and (out / "shards").is_dir()
    error = fleet.run("verify", f"{BASE}/models/", code=2)["error"]
    assert "pip install fsspec" in error and "--list" in error, error
    return "without fsspec 2 addresses are never skipped, or always"


def nothing_secret_is_shown(make: type, directory: Path, command: Path, objects) -> str:
    """A signed web address: its signature is in no manifest and in no message."""
    key = {"Bucket": BUCKET, "Key": "models/0/model.safetensors"}
    signed = objects.generate_presigned_url("get_object", Params=key)
    signature = signed.partition("?")[2]
    assert "Signature=" in signature
    secrets = [part.partition("=")[2] for part in signature.split("&") if "ignature=" in part]
    missing = signed.replace("models/0/", "models/none/")
    password = signed.replace("://", "://user:hidden-word@")
    runs = [(["verify", signed], 0), (["digest", signed], 0), (["verify", missing], 1),
            (["verify", password], 1), (["verify", signed, "--timeout", "3"], 1),
            (["verify", signed, signed.replace("Expires=", "Expires=1")], 2),
            (["verify", password.replace("model.safetensors", "")], 2)]
    for number, (arguments, code) in enumerate(runs):
        wait = 8.0 if "--timeout" in arguments else 0.0
        fleet = make(directory, command, f"signed{number}", wait=wait)
        driver = fleet.start(*arguments, "--attempts", "1")
        out, err = driver.communicate()
        assert driver.returncode == code, f"{arguments}: exit code {driver.returncode}\n{err}"
        kept = fleet.manifest.read_text() if fleet.manifest.exists() else ""
        for secret in [*secrets, "hidden-word"]:
            assert secret not in out + err + kept, f"run {number} shows a secret"
        assert code == 2 or "/models/" in kept, "the rest of the address is kept"
    return f"{len(runs)} runs show no signature"


def versions_and_trees(make: type, directory: Path, command: Path, objects, files: list[Path],
                       s3: dict[str, str]) -> str:
    """With s3fs: finished items are skipped, and changed ones run again."""
    fleet = make(directory, command, "buckets")

    def counts(*arguments: object) -> tuple[int, int]:
        before = fleet.started()
        summary = fleet.run(*arguments)
        assert fleet.started() - before == summary["done"], summary
        return summary["done"], summary["skipped"]

    def digests(path: object) -> list[dict]:
        line = [command, "digest", "--json", path]
        return json.loads(subprocess.check_output(line, env=os.environ | s3))["tensors"]

    tree = f"{BASE}/models/"
    assert counts("verify", tree) == (3, 0), "the shards are no checkpoints"
    assert counts("verify", tree) == (0, 3)
    data = bytearray(files[0].read_bytes())
    data[-1] ^= 1  # another number: the header and the size stay
    key = "models/0/model.safetensors"
    objects.put_object(Bucket=BUCKET, Key=key, Body=bytes(data))
    assert counts("verify", tree) == (1, 2), "the changed object runs again, and only this"
    listed = objects.list_objects_v2(Bucket=BUCKET, Prefix="models/shards/")["Contents"]
    shard = next(one["Key"] for one in listed if one["Key"].endswith(".safetensors"))
    body = bytearray(objects.get_object(Bucket=BUCKET, Key=shard)["Body"].read())
    body[-1] ^= 1
    objects.put_object(Bucket=BUCKET, Key=shard, Body=bytes(body))
    assert counts("verify", tree, "--assume-unchanged") == (1, 2), "a shard has changed"
    alone = f"{BASE}/models/shards"
    assert counts("verify", alone) == (1, 0) and counts("verify", alone) == (0, 1)

    convert = ["convert", tree, "--out", f"{BASE}/out", "--", "--dtype", "bf16"]
    assert counts(*convert) == (3, 0)
    assert counts(*convert) == (0, 3)
    for name, source in (("0/model", f"{BASE}/{key}"), ("a%20b%2541/model", files[1])):
        local = directory / "alone2.safetensors"
        subprocess.run([command, "convert", source, local, "--dtype", "bf16"], check=True,
                       capture_output=True, env=os.environ | s3)
        assert digests(f"{BASE}/out/{name}.safetensors") == digests(local), name
    objects.delete_object(Bucket=BUCKET, Key="out/0/model.safetensors")
    assert counts(*convert) == (1, 2), "the lost output is written again, and only this"
    output = "out/shards/model/model.safetensors"
    objects.put_object(Bucket=BUCKET, Key=output, Body=bytes(data))
    assert counts(*convert) == (1, 2), "so is an output that another program has replaced"
    assert counts(*convert) == (0, 3), "the new output is known, not the one that it replaced"
    up = ["convert", files[0].parent.parent, "--out", f"{BASE}/up"]
    done, skipped = counts(*up)
    assert done > 2 and skipped == 0 and counts(*up) == (0, done)

    equal = fleet.run("dedup", tree, files[1].parent)["duplicates"]["checkpoints"]
    places_of = [sorted(group["places"]) for group in equal]
    assert places_of == [sorted([str(files[1]), f"{tree}a%20b%2541/model.safetensors"])], equal
    manifest = fleet.manifest.read_text()
    assert SECRET not in manifest
    return "3 of a tree are skipped until an object or a shard changes; outputs in the bucket too"
