# SPDX-License-Identifier: Apache-2.0
"""Runs a program on hot modules that were compiled with gcc's address sanitizer.

    python tools/sanitized.py tests/fuzz/arrow_rounds.py --seconds 60

Every read and write beyond the memory that was asked for ends the program with a report. The build has a folder of its
own, build/sanitized; the ordinary modules stay as they are. What is missing for it is named, and is an error: nothing
is left out without a message.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sanitized"
_LIBRARY = "libasan.so"


def compiler() -> str:
    """The command of the C compiler."""
    return os.environ.get("CC", "gcc")


def find_library() -> Path:
    """The sanitizer's library, which must be loaded before everything else.

    Raises:
        SystemExit: something is missing; the text names the package.
    """
    try:
        asked = subprocess.run(
            [compiler(), f"-print-file-name={_LIBRARY}"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"There is no C compiler {compiler()!r} ({error}). Install the package gcc, or name another gcc with CC=."
        ) from None
    path = Path(asked.stdout.strip())
    if not path.is_absolute() or not path.exists():  # a compiler that has none gives the name back
        raise SystemExit(
            f"{compiler()} has no address sanitizer. Install the package libasan (Fedora), or libasan8 with the "
            "libgcc-dev of the compiler's version (Debian, Ubuntu), or name gcc with CC=gcc."
        )
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        raise SystemExit(f"There is no {headers}. Install the package python3-dev (Fedora: python3-devel).")
    return path.resolve()


def build() -> Path:
    """Compile what has changed; the folder that Python finds the package in.

    Raises:
        SystemExit: it cannot be compiled.
    """
    settings = {"PENSTOCK_REQUIRE_EXT": "1", "PENSTOCK_SANITIZE": "1", "CC": compiler()}
    command = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(FOLDER)]
    command += ["--build-lib", str(FOLDER / "lib")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, check=False)
    if done.returncode:
        raise SystemExit(
            "The hot modules cannot be compiled with the address sanitizer: the compiler says why above."
        )
    return FOLDER / "lib"


def main() -> int:
    """Build, and run the program with its arguments; its exit code."""
    library = find_library()
    package = build()
    settings = {
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",  # Python leaves much to the end of the process
        "PYTHONMALLOC": "malloc",  # Python's own pools would hide where an object ends
        "PYTHONPATH": os.pathsep.join((str(package), str(ROOT / "tests"))),
        "PENSTOCK_PURE": "",
    }
    return subprocess.run(
        [sys.executable, *sys.argv[1:]], env={**os.environ, **settings}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
