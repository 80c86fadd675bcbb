# SPDX-License-Identifier: Apache-2.0
"""Builds the source archive and from it the wheel, and tries the wheel where the sources are not.

What the tests import is the source tree; what users import is the wheel. This finds a file that was forgotten in the
packaging, an extension that is not in the wheel, or an import of a package that only development has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Runs inside the clean environment, away from the sources.
SMOKE_TEST = """
import importlib, os, pathlib, pkgutil, sys
import penstock
from penstock import _compiled

home = pathlib.Path(penstock.__file__).resolve()
if pathlib.Path(sys.prefix).resolve() not in home.parents:
    sys.exit(f"imported from {home}, not from the wheel")
wanted = "pure" if os.environ.get("PENSTOCK_PURE") else "compiled"
if _compiled.implementation() != wanted:
    sys.exit(f"expected the {wanted} implementation, got {_compiled.describe()}")
for name in penstock.__all__:
    getattr(penstock, name)
# Every module must import with the core dependencies alone; only those of an extra may ask for more.
extras = ("penstock.spark", "penstock.testing", "penstock.security.oauth.signing")
for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
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
print(f"{wanted}: all {len(penstock.__all__)} public names and all modules import")
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run one step and give its output; a failure ends the check and shows it."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHON"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | environment,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\ncheck_wheel: failed ({done.returncode}): {' '.join(map(str, command))}")
    return done.stdout.strip()


def build(folder: Path) -> Path:
    """Source archive, then a wheel from that archive, with the extensions required, but compiled as fast as can be."""
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT),
        cwd=folder,
        PENSTOCK_REQUIRE_EXT="1",
        PENSTOCK_OPTIMISE="0",
    )
    return next(folder.glob("*.whl"))


def check_contents(wheel: Path) -> None:
    """The hot modules are there three times: extension, source and C signatures; nothing from outside the package."""
    names = zipfile.ZipFile(wheel).namelist()
    sources = [name for name in names if name.endswith("_cy.py")]
    signatures = [path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*_cy.pxd")]
    missing = [
        name
        for name in ("penstock/py.typed", "penstock/cli/demo/orders.toml", *signatures)
        if name not in names
    ]
    missing += [
        name
        for name in sources
        if not any(other.startswith(name[:-3] + ".") and other.endswith((".so", ".pyd")) for other in names)
    ]
    if missing:
        sys.exit(f"check_wheel: not in {wheel.name}, or without its extension: {', '.join(missing)}")
    strays = [
        name for name in names if name.endswith(".c") or name.split("/")[0] in ("tests", "tools", "bench")
    ]
    if strays:
        sys.exit(f"check_wheel: does not belong in {wheel.name}: {', '.join(strays)}")


def main() -> None:
    """Build, look inside, install, import, run."""
    with tempfile.TemporaryDirectory(prefix="penstock-wheel-") as name:
        folder = Path(name)
        print("==> building source archive and wheel")
        wheel = build(folder)
        check_contents(wheel)
        print(f"==> installing {wheel.name} into a clean environment")
        environment = folder / "venv"
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        constraints = ROOT / "constraints.txt"
        run(python, "-m", "pip", "install", "-c", constraints, wheel, cwd=folder)
        print("==> trying it")
        print(run(python, "-I", "-c", SMOKE_TEST, cwd=folder))
        print(run(python, "-I", "-c", SMOKE_TEST, cwd=folder, PENSTOCK_PURE="1"))
        print(run(environment / "bin" / "penstock", "--version", cwd=folder))
        run(python, "-m", "penstock", "produce", "--help", cwd=folder)
        print(f"==> {wheel.name}: good")


if __name__ == "__main__":
    main()
