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
import zlib
from pathlib import Path

# What zipfile raises of an archive that is damaged, encrypted, or packed in a way that it does not know.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)
# Of bytecode that is compared with its source when it is imported: a zip file may be patched later.
_CHECKED = (0b11).to_bytes(4, "little")


class BytecodeError(Exception):
    """The bytecode could not be added."""


def add_bytecode(archive: Path) -> int:
    """Put the bytecode of every module into a zip file; of how many. 0: it has that of this Python already.

    Raises:
        BytecodeError: the file cannot be read or replaced.
    """
    archive = archive.resolve()  # a link stays one, and tracebacks name the file from wherever they are read
    try:
        with zipfile.ZipFile(archive) as found:
            if _is_complete(found):
                return 0
            # Beside the old one, which it replaces in one step: a process that starts now sees one of them, whole. One
            # that has begun to import from the old one does not find the rest of it any more.
            with tempfile.TemporaryDirectory(prefix=".penstock-", dir=archive.parent) as folder:
                fresh = Path(folder) / archive.name
                count = _copy_with_bytecode(found, archive, fresh, Path(folder))
                _make_like(archive, fresh)
                os.replace(fresh, archive)
    except (OSError, *_UNREADABLE) as error:
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


def _is_complete(archive: zipfile.ZipFile) -> bool:
    """Whether each module has the bytecode of this Python and of its source, or cannot have any."""
    names = set(archive.namelist())
    for name in names:
        if not name.endswith(".py"):
            continue
        source = archive.read(name)
        if name + "c" not in names:
            if _compiles(source):
                return False
        elif not archive.read(name + "c").startswith(_header(source)):
            return False
    return True


def _header(source: bytes) -> bytes:
    return importlib.util.MAGIC_NUMBER + _CHECKED + importlib.util.source_hash(source)


def _compiles(source: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "a module", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _make_like(archive: Path, fresh: Path) -> None:
    """Let the new file be whose the old one is, with the same rights, and on the disk."""
    old, new = archive.stat(), fresh.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(fresh, old.st_uid, old.st_gid)
    fresh.chmod(old.st_mode)
    with open(fresh, "rb") as written:
        os.fsync(written.fileno())


def _copy_with_bytecode(found: zipfile.ZipFile, archive: Path, fresh: Path, folder: Path) -> int:
    source, compiled = folder / "module.py", folder / "module.pyc"
    sources = set(found.namelist())
    count = 0
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as out, warnings.catch_warnings():
        # What the compiler thinks of PySpark's sources is not the user's business.
        warnings.simplefilter("ignore")
        for entry in found.infolist():
            if entry.filename.endswith(".pyc") and entry.filename[:-1] in sources:
                continue  # of another Python, or another source
            data = found.read(entry)
            out.writestr(entry, data)
            if not entry.filename.endswith(".py"):
                continue
            source.write_bytes(data)
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
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
            said = (
                f"bytecode of {count} module{'' if count == 1 else 's'} added"
                if count
                else "has its bytecode"
            )
            sys.stdout.write(
                f"{archive.name}: {said} (Python {sys.version_info.major}.{sys.version_info.minor})\n"
            )
    except BytecodeError as error:
        sys.stderr.write(f"bytecode: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
