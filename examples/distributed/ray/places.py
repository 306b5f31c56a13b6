"""The checkpoints at local paths and at addresses: their places, and how changes are detected.

A file of the disk has changed if its size or time is another one. A file at an address has changed
if its size or its ETag is another one. Hugging Face has the identity of a blob in its place, and a
web server without ETag the time of the last change. This program learns them from fsspec (PyPI:
fsspec, and s3fs, gcsfs, adlfs, huggingface_hub or aiohttp). Without it the version is not known.

Only the driver asks fsspec. The nodes need no more than the `safetensors` command.
"""

import collections
import json
import os
import posixpath
import re
from stat import S_ISREG
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes

FILE_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
SUFFIXES = (FILE_SUFFIX, INDEX_SUFFIX)
# What the command knows. Other schemes are addresses too, unless such a path is on the disk.
SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "hf", "file", "memory")
WEB = ("http", "https")
# What fsspec says of a file, the most reliable first.
VERSIONS = ("ETag", "etag", "blob_id", "Content-MD5", "Last-Modified")
LARGEST_INDEX = 100_000_000  # bytes; the command refuses a larger one

# Hidden directories of saves that are under way, or were killed. Their content is not complete.
TEMPORARY = re.compile(r"\..+\.([A-Za-z0-9]{6}\.tmp|[A-Za-z0-9_-]{1,64}\.ranks)")
# The path of a file, its size in bytes, and the time of its last change in nanoseconds. At an
# address: without parts that may be secret, and with the version instead of the time.
Stamp = tuple[str, int | None, int | str | None]

why_unknown: collections.Counter[str] = collections.Counter()


class WrongUsage(Exception):
    """The arguments make no sense. Nothing has been started."""


def scheme_of(path: str) -> str:
    """That of an address, such as s3://bucket/model.safetensors. Empty for a path of the disk."""
    match = re.match(r"([A-Za-z0-9]{2,})://", path)
    scheme = match[1].lower() if match else ""
    return scheme if scheme in SCHEMES + WEB or not os.path.exists(path) else ""


def shown(path: str) -> str:
    """An address without user, password and query, which may be secret. Paths stay as they are."""
    if not scheme_of(path):
        return path
    scheme, _, rest = re.split(r"[?#]", path, maxsplit=1)[0].partition("://")
    host, slash, rest = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{rest}"


def local(path: str) -> str:
    """The path of the disk that file:///path means. Everything else stays as it is."""
    if not path.startswith("file:///"):
        return path
    return os.fsdecode(unquote_to_bytes(os.fsencode(shown(path)[7:])))


def bucket_of(address: str) -> tuple[Any, str]:
    """The file system of fsspec for an address, and the path in it. Fails if fsspec lacks it."""
    import fsspec

    scheme, rest = scheme_of(address), address.partition("://")[2]
    if address != shown(address) and (scheme not in WEB or "@" in rest.partition("/")[0]):
        raise ValueError("credentials do not belong in an address")
    anonymous = scheme == "s3" and os.environ.get("AWS_SKIP_SIGNATURE", "").lower() == "true"
    system = fsspec.filesystem(scheme, **({"anon": True} if anonymous else {}))
    # As the command reads them, addresses of buckets have escapes, which fsspec does not know.
    return system, address if scheme in WEB else rest if scheme == "hf" else unquote(rest)


def address_of(scheme: str, name: str) -> str:
    """The address of a file that fsspec has listed."""
    return f"{scheme}://{name if scheme == 'hf' else quote(name)}"


def reason_of(error: Exception) -> str:
    """What a library says that is missing. Other messages may show credentials: only their kind."""
    return str(error) if isinstance(error, ImportError) else type(error).__name__


def checkpoints_below(root: str, leave_out: str | None) -> list[str]:
    """The indexes below a directory, and the files that are no index's shards.

    Links to directories are not followed, as they may form cycles. A directory that cannot be read
    is listed itself, so that the command reports why. So is a root without any checkpoint.
    """
    if scheme_of(root):
        found = listed(root)
    else:
        found = []
        for directory, names, files in os.walk(root, onerror=lambda e: found.append(e.filename)):
            paths = {name: os.path.join(directory, name) for name in names}
            names[:] = [n for n in names if not TEMPORARY.fullmatch(n) and paths[n] != leave_out]
            found += filter(may_be_checkpoint, (os.path.join(directory, name) for name in files))
    shards = {shard for path in found for shard in files_of(path) if shard != path}
    return sorted(path for path in found if path not in shards) or [root]


def may_be_checkpoint(name: str) -> bool:
    """Whether a file that was found is worth a look: an index, or a file of tensors."""
    return name.endswith(SUFFIXES)


def listed(root: str) -> list[str]:
    """The files of tensors and the indexes below an address that ends with a slash."""
    otherwise = "; name each checkpoint instead, with --list FILE if there are many"
    scheme = scheme_of(root)
    if scheme in WEB:
        raise WrongUsage(f"{shown(root)}: a web server has no list of its files{otherwise}")
    try:
        system, path = bucket_of(root)
        names = system.find(path)
    except ImportError as error:
        needed = "`pip install fsspec`, and s3fs, gcsfs, adlfs or huggingface_hub"
        message = f"{shown(root)}: listing needs {needed} ({error}){otherwise}"
        raise WrongUsage(message) from None
    except Exception as error:  # of any library that fsspec calls
        raise OSError(f"{shown(root)}: cannot be listed: {reason_of(error)}") from None
    found = [address_of(scheme, name) for name in names if may_be_checkpoint(name)]
    if not found:
        raise OSError(f"{shown(root)}: there is no checkpoint below this address")
    return found


def files_of(path: str) -> list[str]:
    """The files of a checkpoint: the file itself, or the index and its shards.

    An index that cannot be read has no shards here. The command says what is wrong with it. An
    address that names neither a file nor an index is a directory with one checkpoint.
    """
    if scheme_of(path) and not shown(path).endswith(SUFFIXES):
        below = directly_in(path)
        return sorted({file for one in below for file in files_of(one)}) or [path]
    if not shown(path).endswith(INDEX_SUFFIX):
        return [path]
    try:
        shards = sorted(set(json.loads(read(path))["weight_map"].values()))
        if not scheme_of(path):
            return [path, *(os.path.normpath(os.path.join(path, os.pardir, n)) for n in shards)]
        directory, query = posixpath.dirname(shown(path)), path[len(shown(path)) :]
        names = shards if scheme_of(path) == "hf" else map(quote, shards)
        return [path, *(f"{directory}/{name}{query}" for name in names)]
    except Exception:  # malformed, or unreadable for any library that fsspec calls
        return [path]


def read(path: str) -> bytes:
    """The content of an index. Only a regular file is read: a device has no end."""
    if not scheme_of(path):
        with open(path, "rb", opener=open_at_once) as file:
            found = os.fstat(file.fileno())
            if not S_ISREG(found.st_mode) or found.st_size > LARGEST_INDEX:
                raise ValueError("no regular file, or too large")
            return file.read(LARGEST_INDEX)
    system, inside = bucket_of(path)
    content = system.cat_file(inside, start=0, end=LARGEST_INDEX + 1)
    if len(content) > LARGEST_INDEX:
        raise ValueError("too large")
    return content


def open_at_once(path: str, flags: int) -> int:
    """Opens a file without waiting for the writer of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def directly_in(address: str) -> list[str]:
    """The files of tensors and the indexes in a directory of a bucket. Empty if that is unknown."""
    scheme = scheme_of(address)
    if scheme in WEB:
        return []
    try:
        system, path = bucket_of(address)
        names = sorted(system.ls(path, detail=False))
    except Exception as error:  # of any library that fsspec calls
        why_unknown[reason_of(error)] += 1
        return []
    return [address_of(scheme, name) for name in names if name.endswith(SUFFIXES)]


def stamp(file: str) -> Stamp:
    """What shows that a file has changed. A missing file has neither size nor time."""
    if not scheme_of(file):
        try:
            status = os.stat(file)
            return file, status.st_size, status.st_mtime_ns
        except (OSError, ValueError):  # the latter for a name that no file can have
            return file, None, None
    if not shown(file).endswith(SUFFIXES):  # a page that lists files, or nothing at all
        why_unknown["not the address of a file"] += 1
        return shown(file), None, None
    try:
        system, path = bucket_of(file)
        about = system.info(path)
        version = next((str(about[name]) for name in VERSIONS if about.get(name)), None)
        if version is None:
            why_unknown["the server names no version"] += 1
        return shown(file), about.get("size"), version
    except Exception as error:  # of any library that fsspec calls
        why_unknown[reason_of(error)] += 1
        return shown(file), None, None


def output_stamps(output: str) -> list[Stamp]:
    """Those of a converted file, or of all files of tensors and indexes in a directory."""
    if scheme_of(output):
        is_file = output.endswith(FILE_SUFFIX)
        return [stamp(file) for file in ([] if is_file else directly_in(output)) or [output]]
    if not os.path.isdir(output):
        return [stamp(output)]
    names = sorted(name for name in os.listdir(output) if name.endswith(SUFFIXES))
    return [stamp(os.path.join(output, name)) for name in names]


def forget_listings(address: str) -> None:
    """Makes the next look at an address a new one: fsspec remembers its lists."""
    try:
        bucket_of(address)[0].invalidate_cache()
    except Exception:  # no fsspec, or none for this address: there is nothing to forget
        pass


def output_of(path: str, root: str, out: str) -> str:
    """Where the converted checkpoint goes: its place below the root, below `out`."""
    name = shown(path)
    if scheme_of(path):
        above = shown(root).rstrip("/") + "/" if not root.endswith("://") else root
        below = name.removeprefix(above)
        if below == name:
            raise WrongUsage(f"{name} is not below --root {shown(root)}")
    else:
        below = os.path.relpath(path, root)
        if below.startswith(os.pardir + os.sep):
            raise WrongUsage(f"{path} is not below --root {root}")
        if below == os.curdir:  # a directory without a checkpoint, of which the command says so
            return out
    below = below.rstrip("/").removesuffix(INDEX_SUFFIX)
    # Whoever writes to the directory or the bucket chooses these names. No output may leave `out`.
    parts = (unquote(below) if scheme_of(path) else below).split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise WrongUsage(f"{name}: this is no place for an output below {shown(root)}")
    if scheme_of(out):
        if not is_utf8(below):
            raise WrongUsage(f"{name}: a name that is not UTF-8 has no place in {out}")
        below = below if scheme_of(path) and scheme_of(path) != "hf" else quote(below)
        return f"{out.rstrip('/')}/{below}"
    return os.path.normpath(os.path.join(out, unquote(below) if scheme_of(path) else below))


def is_utf8(text: str) -> bool:
    """Whether a name of the system is UTF-8. Python keeps other bytes as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def identity(path: str) -> str:
    """The same text for all names of a place: without links and escapes."""
    if not scheme_of(path):
        try:
            return os.path.realpath(path)
        except ValueError:  # a name that no file can have
            return path
    scheme = "s3" if scheme_of(path) == "s3a" else scheme_of(path)
    return f"{scheme}://{unquote(shown(path).partition('://')[2]).rstrip('/')}"


def directory_of(place: str) -> str:
    return place.rpartition("/")[0]


def check_outputs(outputs: dict[str, str], files: dict[str, list[str]]) -> None:
    """Refuses outputs that would replace an input or each other, before anything is started.

    Both are by the path of the input. An output is a file, or a directory in which the command may
    replace every file.
    """
    inputs: dict[str, str] = {}  # by the places that must not be written to
    for path in outputs:
        for file in (path, *files[path]):
            found = {identity(file)}
            if not scheme_of(file):  # a link that is replaced is lost, too
                above, name = os.path.split(file)
                found.add(os.path.join(identity(above), name))
            for place in found:
                inputs.setdefault(place, file)
                inputs.setdefault(directory_of(place), file)
    sources: dict[str, str] = {}  # by output
    for path, output in outputs.items():
        place = identity(output)
        if place in inputs:
            message = f"{shown(output)}, would replace {shown(inputs[place])}: choose another --out"
            raise WrongUsage(f"the output of {shown(path)}, {message}")
        other = sources.setdefault(place, path)
        if other != path:
            both = f"{shown(other)} and of {shown(path)}"
            raise WrongUsage(f"{shown(output)} is the output of {both}: set --root")
    for place, path in sources.items():
        other = sources.get(directory_of(place))
        if other:
            inside = f"would lie in that of {shown(other)}: convert them to different --out"
            raise WrongUsage(f"the output of {shown(path)} {inside}")


def check_out(out: str) -> None:
    """Refuses an address that nothing can be written below, before anything is started."""
    scheme = scheme_of(out)
    if scheme in WEB or scheme == "hf":
        message = "the command writes to directories and buckets, not to web servers or the Hub"
        raise WrongUsage(f"--out {shown(out)}: {message}")
    if shown(out) != out:
        message = "credentials do not belong in an address; set them in the environment"
        raise WrongUsage(f"--out {shown(out)}: {message}")
