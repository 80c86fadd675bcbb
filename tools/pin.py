# SPDX-License-Identifier: Apache-2.0
"""Writes constraints.txt: the exact versions that `make setup`, `make bench` and `make test-examples` install.

    python tools/pin.py > constraints.txt.new && mv constraints.txt.new constraints.txt

Asks pip to resolve the extras from scratch, without installing anything, and prints one `name==version` a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "dev,bench,docs,examples,fuzz,wheels"


def resolve() -> dict[str, str]:
    """What pip would install into an empty environment."""
    command = [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"),
        *("--no-build-isolation", "--report", "-", f"{ROOT}[{EXTRAS}]"),
    ]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = (entry["metadata"] for entry in report["install"])
    return {entry["name"].lower().replace("_", "-"): entry["version"] for entry in found}


def main() -> None:
    """Print the pins in order of name."""
    print(
        "# Exact versions for development, tests and benchmarks. Made by tools/pin.py; not read by users' installs."
    )
    for name, version in sorted(resolve().items()):
        if name != "penstock-kafka":
            print(f"{name}=={version}")


if __name__ == "__main__":
    main()
