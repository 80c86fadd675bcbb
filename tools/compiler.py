# SPDX-License-Identifier: Apache-2.0
"""Whether the hot modules can be compiled here: exit code 0, or 1 and a line that says what is missing.

Asked before anything is compiled: without a compiler, Cython's part alone would take minutes before it fails.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig


def missing() -> str | None:
    """What is missing, with the package that has it; None when nothing is."""
    # As setuptools chooses it.
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    try:
        done = subprocess.run(
            [*command, "-fsyntax-only", include, "-x", "c", "-"],
            input=b"#include <Python.h>\n",
            capture_output=True,
            check=False,
        )
    except OSError:
        return f"there is no C compiler ({command[0]}; Debian's package gcc)"
    if done.returncode:
        return f"{command[0]} cannot compile Python's headers (Debian's packages python3-dev and libc6-dev)"
    return None


def main() -> int:
    """Say what is missing."""
    found = missing()
    if found is not None:
        print(found)
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main())
