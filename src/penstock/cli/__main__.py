# SPDX-License-Identifier: Apache-2.0
"""`python -m penstock.cli`, the same as `python -m penstock`."""

import sys

from penstock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
