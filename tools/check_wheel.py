# SPDX-License-Identifier: Apache-2.0
"""Builds the source archive and from it the wheel, and tries the wheel where the sources are not.

    python tools/check_wheel.py              # build one for this Python, as fast as can be, and try it
    python tools/check_wheel.py --installed  # try what is installed beside this Python: cibuildwheel calls it

What the tests import is the source tree; what users import is the wheel. This finds a file that was forgotten in the
packaging, an extension that is not in the wheel, or an import of a package that only development has.
tools/wheels.py tries with it the wheels that are given to users.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Literal

import pythons

Kind = Literal["compiled", "pure"]

# Runs inside the clean environment, away from the sources. Its argument is the implementation that is expected.
SMOKE_TEST = """
import importlib, pathlib, pkgutil, sys
import penstock
from penstock import _compiled

wanted = sys.argv[1]
home = pathlib.Path(penstock.__file__).resolve()
if pathlib.Path(sys.prefix).resolve() not in home.parents:
    sys.exit(f"imported from {home}, not from the wheel")
if _compiled.implementation() != wanted:
    sys.exit(f"expected the {wanted} implementation, got {_compiled.describe()}")
for name in penstock.__all__:
    getattr(penstock, name)
# Every module must import with the core dependencies alone; only those of an extra may ask for more.
extras = (
    "penstock.spark", "penstock.testing", "penstock.security.oauth.signing", "penstock.watching.prometheus",
    "penstock.watching.opentelemetry",
)

def of_an_extra(name):
    if not name.startswith(extras):
        raise

for module in pkgutil.walk_packages(penstock.__path__, "penstock.", of_an_extra):
    if not module.name.startswith(extras) and "__main__" not in module.name:
        importlib.import_module(module.name)
from penstock._primitives_cy import murmur2
if murmur2(b"foobar") != -790332482:  # as Java's clients have it
    sys.exit(f"murmur2 gives {murmur2(b'foobar')}")
from penstock.records._crc_cy import crc32c, method
if crc32c(b"123456789") != 0xE3069283:
    sys.exit(f"the checksum by {method()} is wrong: {crc32c(b'123456789'):#x}")
if method() not in {"compiled": ("instruction", "table"), "pure": ("google-crc32c",)}[wanted]:
    sys.exit(f"{wanted}, and the checksum is computed by {method()}")
# Records over a socket, through each codec, and back from the fake cluster, which checks every batch.
from penstock.testing import FakeKafka
with FakeKafka() as kafka:
    kafka.create_topic("orders")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with penstock.Producer(bootstrap_servers=kafka.bootstrap_servers, compression_type=codec) as producer:
            sent = [producer.send("orders", b"%d" % number, key=codec.encode()) for number in range(500)]
        for delivery in sent:
            delivery.result(0)
        arrived = [record.value for record in kafka.records("orders") if record.key == codec.encode()]
        if arrived != [b"%d" % number for number in range(500)]:
            sys.exit(f"{len(arrived)} of 500 records arrived by {codec}, or not in their order")
print(f"{wanted}: all {len(penstock.__all__)} public names and all modules import; 2500 records arrived")
"""


def build(folder: Path) -> Path:
    """Source archive, then a wheel from that archive, with the extensions required, but compiled as fast as can be."""
    pythons.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(pythons.ROOT)],
        cwd=folder,
        PENSTOCK_REQUIRE_EXT="1",
        PENSTOCK_OPTIMISE="0",
    )
    return next(folder.glob("*.whl"))


def check_contents(wheel: Path, kind: Kind) -> None:
    """The hot modules are there as source and C signatures, and as extensions or not; nothing from outside the package.

    Raises:
        PythonsError: something is missing, or does not belong there.
    """
    names = zipfile.ZipFile(wheel).namelist()
    source_folder = pythons.ROOT / "src"
    expected = [
        path.relative_to(source_folder).as_posix()
        for pattern in ("*_cy.py", "*_cy.pxd")
        for path in source_folder.rglob(pattern)
    ]
    # What a program reads besides the code: a wheel without it imports well.
    expected += [
        path.relative_to(source_folder).as_posix()
        for pattern in ("py.typed", "*.toml", "*.pem", "*.html", "*.css", "*.js")
        for path in source_folder.rglob(pattern)
    ]
    missing = [name for name in expected if name not in names]
    extensions = [name for name in names if name.endswith((".so", ".pyd"))]
    strays = [
        name for name in names if name.endswith(".c") or name.split("/")[0] in ("tests", "tools", "bench")
    ]
    if kind == "pure":
        strays += extensions
    else:
        missing += [
            f"the extension of {name}"
            for name in expected
            if name.endswith(".py") and not any(one.startswith(name[:-2]) for one in extensions)
        ]
    if missing:
        raise pythons.PythonsError(f"not in {wheel.name}: {', '.join(missing)}")
    if strays:
        raise pythons.PythonsError(f"does not belong in {wheel.name}: {', '.join(strays)}")


def try_out(wheel: Path, python: str, kind: Kind) -> None:
    """Install a wheel into a clean environment of that Python, then import all, send records, and run the commands.

    Raises:
        PythonsError: one of the steps has failed.
    """
    pythons.say(f"installing {wheel.name} into a clean environment")
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as name:
        folder = Path(name)
        pythons.run([python, "-m", "venv", "venv"], cwd=folder)
        inside = folder / "venv" / "bin" / "python"
        pythons.pip_install(inside, wheel)
        smoke_test(inside, kind)
        if kind == "compiled":
            smoke_test(inside, "pure", PENSTOCK_PURE="1")
        print(pythons.run([str(inside.with_name("penstock")), "--version"], cwd=folder))
        pythons.run([str(inside), "-m", "penstock", "produce", "--help"], cwd=folder)
    pythons.say(f"{wheel.name}: good")


def smoke_test(python: Path, kind: Kind, **variables: str) -> None:
    """Try what is installed beside that Python, in a folder where the sources are not.

    Raises:
        PythonsError: it does not work.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as folder:
        print(pythons.run([str(python), "-I", "-c", SMOKE_TEST, kind], cwd=Path(folder), **variables))


def main() -> int:
    """Build, look inside, install, import, run."""
    parser = argparse.ArgumentParser(description="Try the wheel in a clean environment.")
    parser.add_argument("--installed", action="store_true", help="try what is installed beside this Python")
    try:
        if parser.parse_args().installed:
            smoke_test(Path(sys.executable), "compiled")
            return 0
        with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as folder:
            pythons.say("building source archive and wheel")
            wheel = build(Path(folder))
            check_contents(wheel, "compiled")
            try_out(wheel, sys.executable, "compiled")
    except pythons.PythonsError as error:
        print(f"check_wheel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
