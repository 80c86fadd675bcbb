# SPDX-License-Identifier: Apache-2.0
"""Where the development broker keeps its files: one folder per user.

``$PENSTOCK_HOME``, else ``$XDG_CACHE_HOME/penstock``, else ``~/.cache/penstock``. Everything that is
downloaded goes below it, the caches of the download tools too, so that the second start needs no network even
with an empty home.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"


def cache_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder of this user. It need not exist."""
    env = os.environ if environ is None else environ
    if env.get("PENSTOCK_HOME"):
        return Path(env["PENSTOCK_HOME"]).expanduser().absolute()
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]).expanduser().absolute() / "penstock"
    return Path("~/.cache/penstock").expanduser().absolute()


def jar_folder(home: Path) -> Path:
    """Return the folder that holds Kafka's jars, server and tools together."""
    return home / f"kafka-{KAFKA_VERSION}"


def clusters_folder(home: Path) -> Path:
    """Return the folder in which named clusters keep their state and, unless told otherwise, their data."""
    return home / "clusters"
