# SPDX-License-Identifier: Apache-2.0
"""Gives PySpark's own zip files their bytecode: `python -m penstock.spark.bytecode`, once for an installation.

Spark's Python processes import PySpark from SPARK_HOME/python/lib/pyspark.zip, which holds sources only, so that each
process compiles some 270 modules anew: about half a second. A write through a data source in Python starts four such
processes in a fresh session (to find the source, to plan, for the tasks, to commit), one after the other.

Nothing is taken out of the zip files. Where bytecode does not fit, because another version of Python runs, Python
uses the sources as before.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import py_compile
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

_MAGIC_SIZE = len(importlib.util.MAGIC_NUMBER)


class BytecodeError(Exception):
    """The bytecode could not be added."""


def add_bytecode(archive: Path) -> int:
    """Put the bytecode of every module into a zip file; of how many. 0: it has that of this Python already.

    Raises:
        BytecodeError: the file cannot be read or replaced.
    """
    try:
        with zipfile.ZipFile(archive) as found:
            if _has_bytecode(found):
                return 0
            # Beside the old one, which it replaces in one step: a process that starts now sees one of them, whole. One
            # that has begun to import from the old one does not find the rest of it any more.
            with tempfile.TemporaryDirectory(prefix=".penstock-", dir=archive.parent) as folder:
                fresh = Path(folder) / archive.name
                count = _copy_with_bytecode(found, archive, fresh, Path(folder))
                fresh.chmod(archive.stat().st_mode)
                os.replace(fresh, archive)
    except (OSError, zipfile.BadZipFile) as error:
        raise BytecodeError(f"{archive} cannot be given its bytecode: {error}") from error
    return count


def spark_archives(home: Path) -> list[Path]:
    """The zip files that Spark's Python processes import from.

    Raises:
        BytecodeError: there are none.
    """
    folder = home / "python" / "lib"
    found = sorted(folder.glob("pyspark.zip")) + sorted(folder.glob("py4j-*-src.zip"))
    if not found:
        raise BytecodeError(f"there is no pyspark.zip in {folder}: name Spark's folder with --home")
    return found


def find_spark_home() -> Path:
    """Where Spark is: SPARK_HOME, or the PySpark of this environment.

    Raises:
        BytecodeError: neither is there.
    """
    told = os.environ.get("SPARK_HOME")
    if told:
        return Path(told)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BytecodeError("there is no PySpark in this environment, and SPARK_HOME is not set: use --home")
    return Path(spec.origin).parent


def _has_bytecode(archive: zipfile.ZipFile) -> bool:
    """Whether there is bytecode of this Python; modules get it together, but for those that cannot be compiled."""
    first = next((name for name in archive.namelist() if name.endswith(".pyc")), None)
    return first is not None and archive.read(first)[:_MAGIC_SIZE] == importlib.util.MAGIC_NUMBER


def _copy_with_bytecode(found: zipfile.ZipFile, archive: Path, fresh: Path, folder: Path) -> int:
    source, compiled = folder / "module.py", folder / "module.pyc"
    count = 0
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as out, warnings.catch_warnings():
        # What the compiler thinks of PySpark's sources is not the user's business.
        warnings.simplefilter("ignore")
        for entry in found.infolist():
            if entry.filename.endswith(".pyc"):
                continue  # of another Python
            data = found.read(entry)
            out.writestr(entry, data)
            if not entry.filename.endswith(".py"):
                continue
            source.write_bytes(data)
            # Unchecked: what it was made from lies beside it in the same file, which is replaced as a whole.
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            try:
                py_compile.compile(
                    str(source),
                    str(compiled),
                    f"{archive}/{entry.filename}",
                    doraise=True,
                    invalidation_mode=mode,
                )
            except py_compile.PyCompileError:
                continue  # a module for other versions of Python: it fails where it is imported, if it ever is
            out.write(compiled, entry.filename + "c")
            count += 1
    return count


def main() -> int:
    """Add what is missing, and say what was done."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.spark.bytecode",
        description="Give Spark's pyspark.zip its bytecode, so that each Python process of Spark starts about half a "
        "second sooner. Once for an installation, with the Python that Spark uses, and while no Spark runs from it.",
    )
    parser.add_argument(
        "--home", type=Path, help="where Spark is; otherwise SPARK_HOME, or this environment's PySpark"
    )
    home = parser.parse_args().home
    try:
        for archive in spark_archives(home or find_spark_home()):
            count = add_bytecode(archive)
            said = f"bytecode of {count} modules added" if count else "has its bytecode"
            sys.stdout.write(
                f"{archive.name}: {said} (Python {sys.version_info.major}.{sys.version_info.minor})\n"
            )
    except BytecodeError as error:
        sys.stderr.write(f"bytecode: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
