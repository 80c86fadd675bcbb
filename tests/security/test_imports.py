# SPDX-License-Identifier: Apache-2.0
"""Who needs no security does not pay for it."""

from __future__ import annotations

import subprocess
import sys


def loaded(code: str) -> set[str]:
    """The modules that are there after some lines of Python."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


def test_a_plain_client_loads_nothing_of_it():
    modules = loaded("import penstock, penstock.producer.assembly")
    assert "penstock.network.transport" in modules
    assert {
        name for name in modules if name in ("ssl", "_ssl") or name.startswith("penstock.security")
    } == set()


def test_settings_load_no_openssl():
    modules = loaded("import penstock.security.tls.settings, penstock.security.proxy")
    assert "_ssl" not in modules
    assert "cryptography" not in modules


def test_pem_and_jks_need_no_further_package():
    modules = loaded("import penstock.security.tls.context, penstock.security.tls.transport")
    assert "cryptography" not in modules
