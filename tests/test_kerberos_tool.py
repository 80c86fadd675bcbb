# SPDX-License-Identifier: Apache-2.0
"""What `make test-kerberos` says where a part of Kerberos is missing, and where it looks for them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("usr/sbin/krb5kdc", "usr/sbin/kdb5_util", "usr/sbin/kadmin.local", "usr/bin/kinit")
HEADER = "usr/include/mit-krb5/gssapi/gssapi.h"
LIBRARY = "usr/lib/some-linux/libgssapi_krb5.so.2"


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("kerberos_tool", ROOT / "tools" / "kerberos.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kerberos_tool"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["kerberos_tool"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An unpacked tree with everything."""
    for name in (*PROGRAMS, HEADER, LIBRARY):
        place = tmp_path / "tree" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch(0o755)
    return tmp_path / "tree"


def test_a_machine_without_kerberos(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tool, "_SYSTEM_FOLDERS", ())
    with pytest.raises(tool.KerberosError) as caught:
        tool.Installation({"PATH": str(tmp_path)}).check()
    for word in ("krb5-kdc", "krb5-admin-server", "krb5-user", "libkrb5-dev", "PENSTOCK_KRB5_ROOT"):
        assert word in str(caught.value)


def test_the_system(tool: ModuleType, tmp_path: Path):
    for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "krb5-config"):
        (tmp_path / name).touch(0o755)
    system = tool.Installation({"PATH": str(tmp_path), "KRB5CCNAME": "mine"})
    system.check()
    assert system.build_options() == {}
    environment = system.environment(Path("/packages"))
    assert environment["PATH"].startswith(f"{tmp_path}{os.pathsep}")
    assert environment["PYTHONPATH"] == "/packages"
    assert "LD_LIBRARY_PATH" not in environment
    assert "KRB5CCNAME" not in environment


def test_an_unpacked_tree(tool: ModuleType, tree: Path):
    given = {"PATH": "/bin", "PENSTOCK_KRB5_ROOT": str(tree), "PYTHONPATH": "/mine"}
    unpacked = tool.Installation(given)
    unpacked.check()
    environment = unpacked.environment(Path("/packages"))
    assert environment["PATH"] == f"{tree}/usr/sbin:{tree}/usr/bin:/bin"
    assert environment["PYTHONPATH"] == "/packages:/mine"
    assert environment["LD_LIBRARY_PATH"] == f"{tree}/usr/lib/some-linux:{tree}/lib/some-linux"
    assert unpacked.build_options() == {
        "GSSAPI_COMPILER_ARGS": f"-I{tree}/usr/include/mit-krb5 -I{tree}/usr/include -DHAS_GSSAPI_EXT_H",
        "GSSAPI_LINKER_ARGS": f"-L{tree}/usr/lib/some-linux -lgssapi_krb5",
        "GSSAPI_MAIN_LIB": f"{tree}/usr/lib/some-linux/libgssapi_krb5.so.2",
    }


@pytest.mark.parametrize(
    ("part", "package"),
    [
        ("usr/sbin/krb5kdc", "krb5-kdc"),
        ("usr/sbin/kadmin.local", "krb5-admin-server"),
        ("usr/bin/kinit", "krb5-user"),
        (HEADER, "libkrb5-dev"),
        (LIBRARY, "libgssapi-krb5-2"),
    ],
)
def test_a_tree_that_lacks_a_part(tool: ModuleType, tree: Path, part: str, package: str):
    (tree / part).unlink()
    with pytest.raises(tool.KerberosError, match=rf"\(package {package}\)"):
        tool.Installation({"PENSTOCK_KRB5_ROOT": str(tree)}).check()


def test_a_tree_that_is_not_there(tool: ModuleType, tmp_path: Path):
    with pytest.raises(tool.KerberosError, match="which is not a folder"):
        tool.Installation({"PENSTOCK_KRB5_ROOT": str(tmp_path / "none")}).check()
