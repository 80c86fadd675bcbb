# SPDX-License-Identifier: Apache-2.0
"""Bytecode for the zip files that Spark's Python processes import from."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.spark.bytecode import BytecodeError, add_bytecode, spark_archives

ASK = "import mod.inner; print(mod.inner.__file__, mod.inner.where())"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "lib" / "pyspark.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("mod/a_module_for_another_python.py", "def (:\n")
        out.writestr("mod/__init__.py", "")
        out.writestr("mod/inner.py", "def where():\n    return where.__code__.co_filename\n")
        out.writestr("mod/data.txt", "words")
        out.writestr("mod/without_source.pyc", "bytecode")
    return path


def ask(archive: Path) -> str:
    """Which file a module was imported from, and what it says of its source."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_modules_are_imported_from_bytecode_and_say_where_they_come_from(archive: Path) -> None:
    source = archive / "mod" / "inner.py"
    assert ask(archive) == f"{source} {source}"
    assert add_bytecode(archive) == 2
    assert ask(archive) == f"{source}c {source}"


def test_nothing_else_changes(archive: Path) -> None:
    with zipfile.ZipFile(archive) as before:
        old = {name: before.read(name) for name in before.namelist()}
    add_bytecode(archive)
    with zipfile.ZipFile(archive) as after:
        new = {name: after.read(name) for name in after.namelist()}
    added = {"mod/__init__.pyc", "mod/inner.pyc"}
    assert {name: data for name, data in new.items() if name not in added} == old
    assert [path.name for path in archive.parent.iterdir()] == ["pyspark.zip"]


def test_the_second_time_there_is_nothing_to_do(archive: Path) -> None:
    add_bytecode(archive)
    written = archive.stat().st_mtime_ns
    assert add_bytecode(archive) == 0
    assert archive.stat().st_mtime_ns == written


def test_bytecode_of_another_python_is_replaced(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_bytecode(archive)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "MAGIC_NUMBER", b"????")
        assert add_bytecode(archive) == 2
    with zipfile.ZipFile(archive) as found:
        assert sorted(found.namelist()).count("mod/inner.pyc") == 1


def patch(archive: Path, name: str, source: str) -> None:
    """Replace one module, and nothing else."""
    with zipfile.ZipFile(archive) as found:
        entries = {each: found.read(each) for each in found.namelist()}
    entries[name] = source.encode()
    with zipfile.ZipFile(archive, "w") as out:
        for each, data in entries.items():
            out.writestr(each, data)


def test_a_module_that_is_patched_later_is_the_one_that_runs(archive: Path) -> None:
    add_bytecode(archive)
    patch(archive, "mod/inner.py", "def where():\n    return 'patched'\n")
    assert ask(archive).endswith(" patched")
    assert add_bytecode(archive) == 2
    assert ask(archive) == f"{archive / 'mod' / 'inner.pyc'} patched"


def test_the_file_behind_a_link_is_changed_and_keeps_its_rights(archive: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.zip"
    link.symlink_to(archive)
    archive.chmod(0o640)
    assert add_bytecode(link) == 2
    assert link.is_symlink()
    assert add_bytecode(archive) == 0
    assert archive.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_file_stays_whose_it_was(archive: Path) -> None:
    os.chown(archive, 65534, 65534)
    add_bytecode(archive)
    assert (archive.stat().st_uid, archive.stat().st_gid) == (65534, 65534)


def test_a_damaged_zip_is_named_and_left_alone(archive: Path) -> None:
    add_bytecode(archive)  # packed now
    with zipfile.ZipFile(archive) as found:
        at = found.getinfo("mod/inner.py").header_offset + 30 + len("mod/inner.py")
    data = bytearray(archive.read_bytes())
    data[at : at + 4] = b"\xff\xff\xff\xff"
    archive.write_bytes(data)
    with pytest.raises(BytecodeError, match=r"pyspark\.zip cannot be given its bytecode"):
        add_bytecode(archive)
    assert archive.read_bytes() == data


def test_a_file_that_is_no_zip_is_named_and_left_alone(tmp_path: Path) -> None:
    broken = tmp_path / "pyspark.zip"
    broken.write_bytes(b"nothing")
    with pytest.raises(BytecodeError, match=r"pyspark\.zip cannot be given its bytecode"):
        add_bytecode(broken)
    assert broken.read_bytes() == b"nothing"


def test_a_folder_without_spark_is_named(tmp_path: Path) -> None:
    with pytest.raises(BytecodeError, match="--home"):
        spark_archives(tmp_path)
