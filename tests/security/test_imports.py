# SPDX-License-Identifier: Apache-2.0
"""Who does not ask for security does not pay for it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(program: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


@pytest.mark.parametrize("module", ["penstock", "penstock.producer.producer", "penstock.control.client"])
def test_nothing_of_security_is_imported_without_need(module):
    loaded = loaded_by(f"import {module}")
    assert not {name for name in loaded if name.startswith("penstock.security")}
    assert "ssl" not in loaded


def test_passwords_need_neither_tls_nor_http():
    loaded = loaded_by("import penstock.security.sasl.authenticator, penstock.security.sasl.scram")
    assert not loaded & {"ssl", "urllib.request", "http.client", "asyncio", "cryptography", "gssapi"}


def test_a_token_provider_needs_neither_tls_nor_http():
    loaded = loaded_by("import penstock.security.sasl.oauthbearer")
    assert not loaded & {"ssl", "urllib.request", "http.client", "asyncio", "cryptography", "gssapi"}
