# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of Kerberos with a real key distribution centre (KDC): `make test-kerberos`.

    .venv/bin/python tools/kerberos.py                # all of them
    .venv/bin/python tools/kerberos.py -- -k expired  # what follows is passed to pytest

The programs, libraries and headers of MIT Kerberos are those of the system, or those of a tree that PENSTOCK_KRB5_ROOT
names: packages of Debian can be unpacked into one without root. The Python package gssapi, which has no built
packages, is built against them, once, below build/kerberos. What is missing is a failure that says what to install.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "kerberos"
TESTS = "tests/kerberos/on_kafka.py"
VARIABLE = "PENSTOCK_KRB5_ROOT"
# Not in constraints.txt: pip must build gssapi to know what it needs, and most machines lack the headers.
PACKAGES = ("gssapi==1.12.0", "decorator==5.3.1")

_PROGRAMS = {
    "krb5kdc": "krb5-kdc",
    "kdb5_util": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "kinit": "krb5-user",
}
_HEADERS = "libkrb5-dev"
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")  # not on the PATH of every user
_LIBRARY = "libgssapi_krb5.so.2"
_STAMP = "made"
_MAKE_A_TREE = f"""\
Install them as root:
    apt-get install krb5-kdc krb5-admin-server krb5-user libkrb5-dev
or unpack them, without root, and name the folder (docs/testing.md, "Kerberos"):
    {VARIABLE}=~/krb5 make test-kerberos"""


class KerberosError(Exception):
    """Something that the tests need is not there."""


class Installation:
    """MIT Kerberos on this machine.

    Args:
        environ: the variables of this process; PENSTOCK_KRB5_ROOT names an unpacked tree, else the system's is used.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        given = environ.get(VARIABLE)
        self.root = Path(given).expanduser().absolute() if given else None
        self._environ = environ

    @property
    def path(self) -> str:
        """The PATH with the programs on it."""
        own = self._environ.get("PATH", os.defpath)
        if self.root is None:
            return os.pathsep.join((own, *_SYSTEM_FOLDERS))
        return os.pathsep.join((str(self.root / "usr" / "sbin"), str(self.root / "usr" / "bin"), own))

    @property
    def libraries(self) -> list[Path]:
        """The folders of the libraries of an unpacked tree; none where the system's are used."""
        if self.root is None:
            return []
        found = sorted({path.parent for path in self.root.glob(f"usr/lib/**/{_LIBRARY}")})
        return [*found, *(self.root / path.relative_to(self.root / "usr") for path in found)]

    def missing(self) -> dict[str, str]:
        """What is not there, and which package of Debian has it."""
        lacking = {program: package for program, package in _PROGRAMS.items() if self._find(program) is None}
        if self.root is None:
            if shutil.which("krb5-config", path=self.path) is None:
                lacking["krb5-config"] = _HEADERS
            return lacking
        if not self._header.is_file():
            lacking["gssapi/gssapi.h"] = _HEADERS
        if not self.libraries:
            lacking[_LIBRARY] = "libgssapi-krb5-2"
        return lacking

    def check(self) -> None:
        """See that all is there.

        Raises:
            KerberosError: it is not.
        """
        if self.root is not None and not self.root.is_dir():
            raise KerberosError(f"{VARIABLE} names {self.root}, which is not a folder.\n{_MAKE_A_TREE}")
        lacking = self.missing()
        if lacking:
            listed = ", ".join(f"{part} (package {package})" for part, package in lacking.items())
            where = "on the PATH" if self.root is None else f"below {self.root}"
            raise KerberosError(f"these parts of MIT Kerberos are not {where}: {listed}.\n{_MAKE_A_TREE}")

    def environment(self, packages: Path) -> dict[str, str]:
        """The variables for a process that uses it.

        Args:
            packages: where the Python package is.
        """
        wanted = {"PATH": self.path, "PYTHONPATH": str(packages)}
        if self.libraries:
            wanted["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, self.libraries))
        for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
            if name in wanted and self._environ.get(name):
                wanted[name] += os.pathsep + self._environ[name]
        # Whatever the user of this machine has of Kerberos is not what is tested.
        own = {name: value for name, value in self._environ.items() if not name.startswith("KRB5")}
        return own | wanted

    def build_options(self) -> dict[str, str]:
        """The variables that tell the build of gssapi where the tree is; the system's it finds by itself."""
        if self.root is None:
            return {}
        library, headers = self.libraries[0], self._header.parent.parent
        return {
            # It looks for MIT's own header, and with it for credential stores, in the system only.
            "GSSAPI_COMPILER_ARGS": f"-I{headers} -I{headers.parent} -DHAS_GSSAPI_EXT_H",
            "GSSAPI_LINKER_ARGS": f"-L{library} -lgssapi_krb5",
            "GSSAPI_MAIN_LIB": str(library / _LIBRARY),
        }

    @property
    def _header(self) -> Path:
        return (self.root or Path("/")) / "usr" / "include" / "mit-krb5" / "gssapi" / "gssapi.h"

    def _find(self, program: str) -> str | None:
        if self.root is None:
            return shutil.which(program, path=self.path)
        folders = os.pathsep.join(str(self.root / "usr" / name) for name in ("sbin", "bin"))
        return shutil.which(program, path=folders)


def install_package(kerberos: Installation) -> Path:
    """Build the Python package if need be; the folder that has it.

    Raises:
        KerberosError: it could not be built, or does not work.
    """
    made_from = f"{platform.python_version()} {kerberos.root or 'the system'} {' '.join(PACKAGES)}"
    folder = FOLDER / hashlib.sha256(made_from.encode()).hexdigest()[:12]
    if (folder / _STAMP).is_file():
        return folder
    print(f"==> {PACKAGES[0]}, built in {folder.relative_to(ROOT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    # Not from pip's cache: what is there may have been built against another Kerberos.
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
    _run(
        [*pip, "--no-build-isolation", "--no-deps", "--target", str(folder), *PACKAGES],
        dict(kerberos.environment(folder)) | kerberos.build_options(),
        f"{PACKAGES[0]} could not be built; it needs a C compiler and the headers of {_HEADERS}",
    )
    _run(
        [sys.executable, "-c", "import gssapi.raw.ext_cred_store"],
        kerberos.environment(folder),
        f"{PACKAGES[0]} was built, but does not work",
    )
    (folder / _STAMP).write_text(f"{made_from}\n", encoding="utf-8")
    return folder


def _run(command: list[str], environment: dict[str, str], failed: str) -> None:
    done = subprocess.run(
        command,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise KerberosError(f"{failed}:\n{done.stdout[-4000:]}")


def main(arguments: list[str]) -> int:
    """Run the tests; pytest's exit code."""
    given = arguments[1:] if arguments[:1] == ["--"] else arguments
    kerberos = Installation(os.environ)
    try:
        kerberos.check()
        packages = install_package(kerberos)
    except KerberosError as error:
        print(f"test-kerberos: {error}", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", TESTS, *given]
    return subprocess.run(command, cwd=ROOT, env=kerberos.environment(packages), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
