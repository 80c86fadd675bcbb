# SPDX-License-Identifier: Apache-2.0
"""The recipes that the page about security says were tried: each is followed on a real Kafka.

Only what names a place is replaced: addresses, paths, users and the token endpoint. What the recipes trust by the
system's roots is put among them.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from security.oauth.provider import Provider, running_provider
from security.oauth.tokens import claims_of, part
from security.proxies import listening, socks5
from security.tls.stores import keytool

from penstock import Producer
from penstock.devbroker import DevCluster
from penstock.devbroker.security import USERS

pytestmark = pytest.mark.broker

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "security.md"
SECRET = "a-secret"
TIMEOUT = 60.0


class Recipe(NamedTuple):
    """A block of the page, and the way of the broker that it is for."""

    heading: str
    number: int
    language: str
    way: str


RECIPES = [
    Recipe("A test cluster with a certificate of its own", 0, "properties", "ssl"),
    Recipe("mTLS", 0, "properties", "mtls"),
    Recipe("mTLS", 1, "properties", "mtls"),
    Recipe("mTLS", 2, "properties", "mtls"),
    Recipe("SCRAM over TLS", 0, "python", "sasl_ssl-scram-sha-512"),
    Recipe("OIDC", 0, "properties", "sasl_ssl-oauthbearer"),
    Recipe("OIDC", 1, "properties", "sasl_ssl-oauthbearer"),
    Recipe("OIDC", 2, "properties", "sasl_ssl-oauthbearer"),
    Recipe("OIDC", 0, "python", "sasl_ssl-oauthbearer"),
    Recipe("Through a proxy", 0, "properties", "ssl"),
]


def sections() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def blocks(heading: str, language: str) -> list[str]:
    text = re.split(r"^## ", sections()[heading], flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def secured() -> Iterator[DevCluster]:
    with DevCluster(security="all") as cluster:
        yield cluster


def openssl(*arguments: str) -> str:
    return subprocess.run(
        ["openssl", *arguments], check=True, capture_output=True, text=True, timeout=300
    ).stdout


@pytest.fixture(scope="module")
def files(secured: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the recipes call /etc/kafka and /run/secrets, made from the broker's certificates."""
    folder = tmp_path_factory.mktemp("files")
    options = secured.client_options("mtls")
    ca, client = options["ssl.truststore.location"], options["ssl.keystore.location"]
    (folder / "ca.pem").write_text(Path(ca).read_text())
    # Keys go into files: what is printed in the test that uses them first would count as shown.
    openssl("pkey", "-in", client, "-out", str(folder / "plain.key"))
    (folder / "client.pem").write_text(openssl("x509", "-in", client))
    key = ("-in", str(folder / "plain.key"), "-topk8", "-passout", f"pass:{SECRET}")
    openssl("pkcs8", *key, "-out", str(folder / "client.key"))
    (folder / "key-password").write_text(f"{SECRET}\n")
    store = folder / "both.p12"
    openssl(
        "pkcs12", "-export", "-in", client, "-out", str(store), "-passout", f"pass:{SECRET}", "-name", "c"
    )
    source = ("-srckeystore", str(store), "-srcstoretype", "PKCS12", "-srcstorepass", SECRET)
    target = (
        "-destkeystore",
        str(folder / "keystore.jks"),
        "-deststoretype",
        "JKS",
        "-deststorepass",
        SECRET,
    )
    keytool("-importkeystore", "-noprompt", *source, *target)
    trust = ("-keystore", str(folder / "truststore.jks"), "-storetype", "JKS", "-storepass", SECRET)
    keytool("-importcert", "-noprompt", "-file", ca, "-alias", "ca", *trust)
    openssl("genpkey", "-algorithm", "RSA", "-out", str(folder / "assertion.pem"))
    (folder / "token.jwt").write_text(token())
    return folder


def token() -> str:
    """One that the broker takes, which wants no signature."""
    now = int(time.time())
    return f"{part({'alg': 'none'})}.{part({'sub': 'alice', 'iat': now, 'exp': now + 3600})}."


@pytest.fixture
def adapted(
    secured: DevCluster, files: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Recipe], tuple[str, Provider]]]:
    """Gives the text of a recipe with the places of this machine, and the provider of tokens."""
    for name in ("TRUSTSTORE_PASSWORD", "KEYSTORE_PASSWORD", "CLIENT_SECRET", "PROXY_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("KAFKA_PASSWORD", USERS["alice"])
    for name, file in (
        ("KAFKA_CA", "ca.pem"),
        ("KAFKA_CERTIFICATE", "client.pem"),
        ("KAFKA_KEY", "plain.key"),
    ):
        monkeypatch.setenv(name, (files / file).read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "ca.pem"))
    monkeypatch.setenv("no_proxy", "*")
    # The provider is on this machine too, with the broker's certificate.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(Path(secured.client_options("ssl")["ssl.truststore.location"]).parent / "broker.pem")
    port = int(secured.client_options("ssl")["bootstrap.servers"].rpartition(":")[2])
    known = socks5({"localhost": port}, "orders", SECRET)
    with running_provider(tls=tls) as provider, listening(known) as proxy:
        provider.answers = [(200, {"access_token": token(), "expires_in": 3600})]

        def adapt(recipe: Recipe) -> tuple[str, Provider]:
            text = blocks(recipe.heading, recipe.language)[recipe.number]
            options = secured.client_options(recipe.way)
            text = re.sub(r"(?:kafka\.example\.com|localhost):9093", options["bootstrap.servers"], text)
            text = re.sub(r"/etc/kafka/|/run/secrets/", f"{files}/", text)
            text = text.replace("https://login.example.com/oauth2/token", provider.url)
            text = text.replace("proxy.example.com:1080", f"localhost:{proxy}")
            return text.replace('sasl_username="orders"', 'sasl_username="alice"').replace(
                "the-token", token()
            ), provider

        yield adapt


@pytest.mark.parametrize(
    "recipe", RECIPES, ids=lambda recipe: f"{recipe.heading}, {recipe.language} {recipe.number}"
)
def test_the_recipe_works(
    recipe: Recipe, adapted: Callable[[Recipe], tuple[str, Provider]], tmp_path: Path, monkeypatch: Any
) -> None:
    text, provider = adapted(recipe)
    if recipe.language == "properties":
        file = tmp_path / "client.properties"
        file.write_text(text)
        with Producer(file) as producer:
            assert producer.send("recipes", b"x").result(timeout=TIMEOUT).offset >= 0
    else:
        sent: list[Any] = []
        real = Producer.send
        monkeypatch.setattr(
            Producer, "send", lambda self, *args, **named: sent.append(real(self, *args, **named)) or sent[-1]
        )
        made: dict[str, Any] = {}
        exec(compile(text, str(PAGE), "exec"), made)
        if not sent:  # the recipe ends with the producer
            made["producer"].send("recipes", b"x")
        made["producer"].close()
        assert [delivery.result(timeout=TIMEOUT).offset >= 0 for delivery in sent] == [True]
    asked = [form for _, form in provider.asked]
    if "jwt.retriever" in text:
        assert [claims_of(form["assertion"])["iss"] for form in asked] == ["orders"]
    elif provider.url in text:
        assert asked == [{"grant_type": "client_credentials", "scope": "kafka"}]


def test_the_page_says_which_recipes_were_tried() -> None:
    tried = {recipe.heading for recipe in RECIPES}
    said = re.search(r"^\*\*Tried on a real Kafka\*\*(.*?)\n\n", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert said is not None
    links = set(re.findall(r"\[([^]]+)\]\(#", said[1]))
    assert links == tried
