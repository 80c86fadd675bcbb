# SPDX-License-Identifier: Apache-2.0
"""A client that needs no security does not load it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(program: str) -> set[str]:
    """The modules that are there after some lines of Python."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return set(shown.stdout.split())


@pytest.mark.parametrize(
    "module",
    ["penstock", "penstock.producer.producer", "penstock.producer.assembly", "penstock.control.client"],
)
def test_a_plain_client_loads_nothing_of_it(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert not {name for name in loaded if name in ("ssl", "_ssl") or name.startswith("penstock.security")}


def test_passwords_need_neither_tls_nor_http() -> None:
    loaded = loaded_by("import penstock.security.sasl.authenticator, penstock.security.sasl.scram")
    assert not loaded & {"ssl", "urllib.request", "http.client", "asyncio", "cryptography", "gssapi"}


def test_a_token_provider_needs_neither_tls_nor_http() -> None:
    loaded = loaded_by("import penstock.security.sasl.oauthbearer")
    assert not loaded & {"ssl", "urllib.request", "http.client", "asyncio", "cryptography", "gssapi"}


def test_settings_load_no_openssl() -> None:
    loaded = loaded_by("import penstock.security.tls.settings, penstock.security.proxy")
    assert not loaded & {"_ssl", "cryptography"}


def test_pem_and_jks_need_no_further_package() -> None:
    loaded = loaded_by("import penstock.security.tls.context, penstock.security.tls._transport_cy")
    assert "cryptography" not in loaded
