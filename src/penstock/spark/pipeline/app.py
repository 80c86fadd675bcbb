# SPDX-License-Identifier: Apache-2.0
"""The program for spark-submit: `spark-submit "$(penstock run --print-app)" PIPELINE.toml`.

spark-submit takes a file, not a module or an installed command; this is that file, and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Run the command line behind the file's name."""
    # Python puts the folder of a program first on its path: modules of this package would be found without it.
    own = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != own]
    import importlib

    # Not an import statement: the layers below the command line know nothing of it, and this file only stands there.
    run: int = importlib.import_module("penstock.cli.main").main(["run", *sys.argv[1:]])
    return run


if __name__ == "__main__":
    sys.exit(main())
