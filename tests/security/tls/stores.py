# SPDX-License-Identifier: Apache-2.0
"""Key stores as Java makes them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from security.tls.certificates import client, make, the_ca

STORE_PASSWORD = "store-S3cret"
KEY_PASSWORD = "key-S3cret"
TRUST_PASSWORD = "trust-S3cret"


class Stores(NamedTuple):
    """Files that keytool has written: the client's identity, and the test CA as what is trusted."""

    jks_key: Path
    jks_other_password: Path
    jks_two_keys: Path
    jks_trust: Path
    p12_key: Path
    p12_trust: Path
    p12_java_8: Path
    jceks: Path


def keytool(*arguments: str, stdin: str = "") -> None:
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "keytool") if home else shutil.which("keytool")
    subprocess.run(
        [str(found), "-J-XX:TieredStopAtLevel=1", "-J-Xshare:auto", *arguments],
        check=True,
        input=stdin,
        text=True,
        capture_output=True,
        timeout=300,
    )


def p12(password: str) -> bytes:
    """The client's identity with its chain, as OpenSSL would write it."""
    return pkcs12.serialize_key_and_certificates(
        b"client",
        client().key,
        client().certificate,
        [make("of no use").certificate, the_ca().certificate],
        serialization.BestAvailableEncryption(password.encode()),
    )


def make_stores(folder: Path) -> Stores:
    stores = Stores(*(folder / f"{name}.store" for name in Stores._fields))
    source = folder / "source.p12"
    source.write_bytes(p12(STORE_PASSWORD))
    ca = folder / "ca.pem"
    ca.write_text(the_ca().pem)
    take = ("-importkeystore", "-noprompt", "-srcstoretype", "PKCS12", "-srckeystore", str(source))
    take += ("-srcstorepass", STORE_PASSWORD, "-deststorepass", STORE_PASSWORD)
    for kind, place in (("JKS", stores.jks_key), ("PKCS12", stores.p12_key), ("JCEKS", stores.jceks)):
        keytool(*take, "-deststoretype", kind, "-destkeystore", str(place))
    old = ("-J-Dkeystore.pkcs12.legacy=true", "-deststoretype", "PKCS12")
    keytool(*take, *old, "-destkeystore", str(stores.p12_java_8))
    one = ("-srcalias", "client", "-destkeypass", KEY_PASSWORD, "-deststoretype", "JKS")
    keytool(*take, *one, "-destkeystore", str(stores.jks_other_password))
    shutil.copy(stores.jks_key, stores.jks_two_keys)
    again = ("-srcalias", "client", "-destalias", "second", "-destkeypass", STORE_PASSWORD)
    keytool(*take, *again, "-deststoretype", "JKS", "-destkeystore", str(stores.jks_two_keys))
    for kind, place in (("JKS", stores.jks_trust), ("PKCS12", stores.p12_trust)):
        keytool(
            *("-importcert", "-noprompt", "-file", str(ca), "-alias", "the ca", "-storetype", kind),
            *("-storepass", TRUST_PASSWORD, "-keystore", str(place)),
        )
    return stores
