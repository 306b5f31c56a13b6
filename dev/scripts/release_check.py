#!/usr/bin/env python3
"""Checks the conditions of a release, without a network and without compiling anything.

    dev/scripts/release_check.py [--publish]

Each problem is one line. With --publish, placeholders and a missing date in the changelog are
problems too. docs/RELEASING.md has the steps of a release.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PUBLISH = "--publish" in sys.argv[1:]
problems = []


def expect(holds, problem):
    """Notes a problem, and whether there is none."""
    if not holds:
        problems.append(problem)
    return holds


def cargo(*args):
    command = ["cargo", *args]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        expect(False, f"{' '.join(command)}: {result.stderr.strip()}")
        finish()
    return result.stdout


def finish():
    """Ends the program if there are problems, and prints them."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def minor(version):
    return ".".join(version.split(".")[:2])


def check_versions(members):
    versions = {package["version"] for package in members}
    expect(len(versions) == 1, f"the packages have different versions: {sorted(versions)}")
    for package in members:
        for dependency in package["dependencies"]:
            if not dependency.get("path"):
                continue
            name = f"{package['name']}: the dependency {dependency['name']}"
            if dependency["req"] == "*":
                # Without a version, the published package omits a dependency of tests.
                expect(dependency["kind"] == "dev", f"{name} has a path but no version")
            else:
                expect(
                    dependency["req"] == f"^{package['version']}",
                    f"{name} asks for {dependency['req']}, but {package['version']} is released",
                )
    return members[0]["version"]


def check_changelog(version):
    headings = re.findall(r"^## \[([^\]]+)\](?: - (.*))?$", read("CHANGELOG.md"), re.MULTILINE)
    names = [name for name, _ in headings]
    expect(names[:1] == ["Unreleased"], "CHANGELOG.md does not begin with [Unreleased]")
    expect(len(names) == len(set(names)), "CHANGELOG.md has a version twice")
    for name, date in headings[1:]:
        expect(
            re.fullmatch(r"\d{4}-\d{2}-\d{2}", date), f"CHANGELOG.md: {name} has no date YYYY-MM-DD"
        )
    released = names[1:]
    numbers = [[int(part) for part in name.split(".")] for name in released]
    in_order = numbers == sorted(numbers, reverse=True)
    expect(in_order, "CHANGELOG.md: the newest version is not first")
    if PUBLISH:
        expect(released[:1] == [version], f"CHANGELOG.md has no section [{version}] - DATE")
    elif released:
        # Between releases the version is the last one, or already the next one.
        expect(
            numbers[0] <= [int(part) for part in version.split(".")],
            f"CHANGELOG.md has {released[0]}, which is newer than {version} in Cargo.toml",
        )


def check_order(members):
    """The order of docs/RELEASING.md has all packages, each after its dependencies."""
    rows = re.findall(r"^ +\| (\d+) \| `([a-z-]+)` \| ([a-z, ]*)\|$", read("docs/RELEASING.md"), re.M)
    order = [name for _, name, _ in rows]
    numbers = [int(number) for number, *_ in rows]
    expect(numbers == list(range(1, len(rows) + 1)), f"docs/RELEASING.md: the rows are {numbers}")
    names = {package["name"] for package in members}
    expect(set(order) == names, f"docs/RELEASING.md: the order lacks or adds {set(order) ^ names}")
    needed = {name: listed for _, name, listed in rows}
    for package in members:
        ours = [
            dependency
            for dependency in package["dependencies"]
            if dependency["name"] in names - {package["name"]}
        ]
        listed = needed.get(package["name"], "").replace(" ", "").split(",")
        listed = {f"safetensors-{name}" for name in listed if name}
        normal = {dependency["name"] for dependency in ours if dependency["kind"] != "dev"}
        expect(
            listed == normal,
            f"docs/RELEASING.md: {package['name']} needs {sorted(normal)}, not {sorted(listed)}",
        )
        # The registry looks at dependencies of tests too, if they have a version.
        for other in {dependency["name"] for dependency in ours if dependency["req"] != "*"}:
            is_before = {other, package["name"]} <= set(order) and (
                order.index(other) < order.index(package["name"])
            )
            expect(is_before, f"docs/RELEASING.md: {other} must come before {package['name']}")


def check_table(version, members):
    """The compatibility table names the versions that Cargo.toml asks for."""
    manifest = tomllib.loads(read("Cargo.toml"))["workspace"]
    asked = manifest["dependencies"]
    versions = [minor(asked[name]["version"]) for name in ("candle-core", "burn", "ndarray")]
    expect(
        asked["candle-nn"]["version"] == asked["candle-core"]["version"],
        "candle-core and candle-nn have different versions",
    )
    rust = {package["name"]: package["rust_version"] for package in members}
    core = rust["safetensors-core"]
    expected = [minor(version), *versions, rust["safetensors-burn"], core]
    row = f"| {' | '.join(expected)} |"
    readme = read("README.md")
    expect(row in readme, f"README.md: the table Versions has no row {row}")
    for name in sorted(rust.keys() - {"safetensors-burn"}):
        expect(rust[name] == core, f"{name} has the rust-version {rust[name]}, the core {core}")
    for line in (
        f'safetensors-bridge = {{ version = "{minor(version)}"',
        f'`ndarray = "{versions[2]}"`',
        f'`candle-core = "{versions[0]}"`',
        f'`burn = "{versions[1]}"`',
    ):
        expect(line in readme, f"README.md does not say {line}")
    workflow = read(".github/workflows/ci.yml")
    for toolchain in (expected[-1], expected[-2]):
        expect(f'"{toolchain}.0"' in workflow, f"ci.yml does not use Rust {toolchain}")


def check_packages(members):
    for package in members:
        name = package["name"]
        manifest = package["manifest_path"]
        files = cargo(
            "package", "--list", "--allow-dirty", "--offline", "--manifest-path", manifest
        ).splitlines()
        wanted = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"]
        if name == "safetensors-bridge-cli":
            wanted += ["pyproject.toml", "schemas/inspect.json"]
        for file in wanted:
            expect(file in files, f"{name}: the package lacks {file}")
        for file in files:
            expect(
                not file.startswith((".ci/", ".github/", "target/")),
                f"{name}: the package has {file}",
            )
        paths = [Path(manifest).parent / file for file in files]
        size = sum(path.stat().st_size for path in paths if path.is_file())
        # The registry refuses packages of more than 10 MiB after compression.
        expect(size < 10 << 20, f"{name}: the files of the package have {size} bytes")
        print(f"-- {name} {package['version']}: {len(files)} files, {size:,} bytes")
        for field in ("description", "license", "repository", "readme"):
            expect(package.get(field), f"{name}: Cargo.toml has no {field}")
        if PUBLISH:
            is_set = "PLACEHOLDER" not in (package["repository"] or "")
            expect(is_set, f"{name}: the repository is a PLACEHOLDER")


def check_archives(members):
    """The metadata of archives, Debian packages and wheels fits the script that makes them."""
    cli = next(package for package in members if package["name"] == "safetensors-bridge-cli")
    binstall = cli["metadata"]["binstall"]
    script = read("dev/scripts/package_command")
    expect("name=safetensors-$version-$target" in script, "package_command: another name")
    folder = "safetensors-{ version }-{ target }"
    expect(
        binstall["pkg-url"].endswith(f"/v{{ version }}/{folder}{{ archive-suffix }}")
        and binstall["bin-dir"] == f"{folder}/{{ bin }}{{ binary-ext }}"
        and binstall["pkg-fmt"] == "tgz",
        "package.metadata.binstall does not fit the archives of dev/scripts/package_command",
    )
    here = Path(cli["manifest_path"]).parent
    for source, *_ in cli["metadata"]["deb"]["assets"]:
        if source.startswith("../target/package/command/completions/"):
            name = source.rsplit("/", 1)[1]
            is_made = re.search(rf"^[a-z]+ {re.escape(name)}$", script, re.MULTILINE)
            expect(is_made, f"package.metadata.deb: nothing makes {source}")
        elif not source.startswith(("target/", "../target/package/command/man1/")):
            expect(list(here.glob(source)), f"package.metadata.deb: there is no {source}")
    if PUBLISH:
        is_set = "PLACEHOLDER" not in cli["metadata"]["deb"]["maintainer"]
        expect(is_set, "package.metadata.deb: the maintainer is a PLACEHOLDER")
    wheel = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))
    expect(wheel["project"]["name"] == cli["name"], "pyproject.toml has another name")
    expect(wheel["project"]["license"] == cli["license"], "pyproject.toml has another license")
    for name in wheel["project"]["license-files"]:
        expect((here / name).exists(), f"pyproject.toml: there is no {name}")


def main():
    unknown = set(sys.argv[1:]) - {"--publish"}
    if unknown:
        sys.exit(f"unknown arguments: {' '.join(sorted(unknown))}\n{__doc__}")
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--no-deps", "--offline"))
    # Members with `publish = false` are only for this repository.
    members = [package for package in metadata["packages"] if package["publish"] != []]
    version = check_versions(members)
    check_changelog(version)
    check_order(members)
    check_table(version, members)
    check_packages(members)
    check_archives(members)
    finish()
    rest = "" if PUBLISH else ", but for what --publish checks"
    print(f"{len(members)} packages of version {version} can be released{rest}")


main()
