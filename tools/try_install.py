# SPDX-License-Identifier: Apache-2.0
"""Installs the wheel as users do, with each extra, and follows the first pages of the documentation literally.

    .venv/bin/python tools/try_install.py             # everything
    .venv/bin/python tools/try_install.py spark oauth  # these extras; `pages` for the pages

Each extra gets a clean environment, in which a program uses what the extra is for. Packages come in the versions that
pip chooses for a user: constraints.txt is not read. The wheel is the one in dist/ for this Python, if `make wheels` has
made it, or one that is compiled as fast as can be.

The pages docs/start.md and docs/tutorial.md are done by the letter, in one folder: their commands, their files, and
what they say that a program prints.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import check_wheel
import pythons

PAGES = ("start.md", "tutorial.md")
# For those who work on Penstock itself; the targets of the Makefile that need them install them.
DEVELOPMENT = {"bench", "browser", "dev", "docs", "examples", "fuzz", "tests", "wheels"}
_PUT_FOR_A_WHEEL = "/path/of/the/checkout"

_ON_A_FAKE = """
import penstock
from penstock.testing import FakeKafka
with FakeKafka(topics={"orders": 1}) as kafka:
    servers = kafka.bootstrap_servers
%s
    found = len(kafka.records("orders"))
    if found != 100:
        raise SystemExit(f"{found} of 100 records arrived")
"""

# What each extra is for, as a program that fails where it does not work.
USES = {
    "cli": _ON_A_FAKE
    % """
    import rich
    from penstock.cli.main import main
    if main(["perf", "--topic", "orders", "--num-records", "100", "--record-size", "10", "-b", servers]):
        raise SystemExit("penstock perf failed")
""",
    "arrow": _ON_A_FAKE
    % """
    import pyarrow
    with penstock.Producer(bootstrap_servers=servers) as producer:
        sent = producer.send_arrow("orders", pyarrow.table({"value": [str(number) for number in range(100)]}))
        sent.result(30)
""",
    "spark": _ON_A_FAKE
    % """
    import os, sys
    from pyspark.sql import SparkSession
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    writer = rows.write.format("penstock").mode("append").option("kafka.bootstrap.servers", servers)
    writer.option("topic", "orders").option("delivery", "at-least-once").save()
    spark.stop()
""",
    "connect": """
import penstock.spark
from pyspark.sql.connect.session import SparkSession
""",
    "pkcs12": """
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from penstock.security.tls.pkcs12 import read_identity
key = ec.generate_private_key(ec.SECP256R1())
import datetime
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "orders")])
now = datetime.datetime.now(datetime.UTC)
unsigned = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
unsigned = unsigned.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
store = pkcs12.serialize_key_and_certificates(
    b"orders", key, unsigned.sign(key, SHA256()), None, BestAvailableEncryption(b"secret of a store"))
if not read_identity(store, "secret of a store"):
    raise SystemExit("the store was not read")
""",
    "oauth": "import penstock.security.oauth.signing",
    "prometheus": _ON_A_FAKE
    % """
    from prometheus_client import REGISTRY, generate_latest
    from penstock.watching.prometheus import collector
    with penstock.Producer(bootstrap_servers=servers, metric_reporters=[collector]) as producer:
        for number in range(100):
            producer.send("orders", b"%d" % number)
        producer.flush(30)
        text = generate_latest(REGISTRY).decode()
    if "kafka_producer_producer_metrics_record_send_total" not in text:
        raise SystemExit(text)
""",
    "otel": _ON_A_FAKE
    % """
    from opentelemetry import trace
    from penstock.watching.opentelemetry import OpenTelemetry
    here = trace.SpanContext(7, 8, is_remote=False)
    with penstock.Producer(bootstrap_servers=servers, tracing=OpenTelemetry("propagation")) as producer:
        with trace.use_span(trace.NonRecordingSpan(here)):
            for number in range(100):
                producer.send("orders", b"%d" % number)
    if not all("traceparent" in dict(record.headers)
               for record in kafka.records("orders")):
        raise SystemExit("a record has no context in its headers")
""",
    "gssapi": "import gssapi",
}


def the_wheel(folder: Path) -> Path:
    """That of a release, for this Python; or a quick one, made in the folder."""
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    made = sorted((pythons.ROOT / "dist").glob(f"*-{here}-{here}-*.whl"))
    if made:
        return made[-1]
    pythons.say("building a wheel")
    return check_wheel.build(folder)


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """The interpreter of a clean environment with the wheel and the extra."""
    pythons.run([sys.executable, "-m", "venv", str(folder)])
    inside = folder / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check")
    pythons.run([str(inside), "-m", "pip", "install", *quiet, f"{wheel}[{extra}]"])
    return inside


def try_extra(wheel: Path, extra: str) -> None:
    """Install it, and use it.

    Raises:
        PythonsError: one of the two did not work.
    """
    pythons.say(f"penstock-kafka[{extra}]")
    with tempfile.TemporaryDirectory(prefix="penstock-extra-") as name:
        inside = environment(Path(name) / "venv", wheel, extra)
        pythons.run([str(inside), "-I", "-c", USES[extra]], cwd=Path(name))


def follow_pages(wheel: Path) -> int:
    """Do what the pages say, in a folder of its own; how many programs that were.

    Raises:
        PythonsError: a command fails, or a program prints something else.
    """
    pages = _snippet_reader()
    programs = 0
    with tempfile.TemporaryDirectory(prefix="penstock-pages-") as name:
        folder = Path(name)
        for page in PAGES:
            pythons.say(f"docs/{page}")
            for snippet in pages.snippets(pages.DOCS / page):
                if snippet.language == "console" and page == PAGES[0]:
                    for line in snippet.code.splitlines():
                        print(_shell(line.replace(_PUT_FOR_A_WHEEL, str(wheel)), folder))
                        folder = _folder_after(line, folder)
                elif snippet.language == "python":
                    programs += 1
                    _run_program(pages, snippet, folder)
    return programs


def _run_program(pages: ModuleType, snippet: object, folder: Path) -> None:
    """Write the file that the page names, and run it as the page says."""
    file, code, prints = snippet.file, snippet.code, snippet.prints  # type: ignore[attr-defined]
    if file is None:
        raise pythons.PythonsError(f"{snippet}: the page does not say which file this is")
    (folder / file).write_text(code, encoding="utf-8")
    if prints is None:
        return  # a module that another program imports
    if snippet.is_test:  # type: ignore[attr-defined]
        _shell("kafka-start/bin/pip install --quiet --disable-pip-version-check pytest", folder)
        printed = _shell("kafka-start/bin/python -m pytest -q", folder)
    else:
        printed = _shell(f"kafka-start/bin/python {file}", folder)
    if not pages.as_pattern(prints).fullmatch(printed):
        raise pythons.PythonsError(f"{snippet}: {file} prints\n{printed}\nand the page says\n{prints}")


def _folder_after(line: str, folder: Path) -> Path:
    """Where the reader is after a line of the shell: each line has a shell of its own."""
    _, moves, name = line.partition("cd ")
    return folder / name.strip() if moves else folder


def _shell(line: str, folder: Path) -> str:
    """What a line of the shell prints, but for warnings of the log."""
    done = subprocess.run(
        ["sh", "-c", line],  # as a reader types it
        cwd=folder,
        env=pythons.clean_variables(),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise pythons.PythonsError(f"{done.stdout}{done.stderr}\nfailed ({done.returncode}): {line}")
    return done.stdout.strip()


def _snippet_reader() -> ModuleType:
    """The part of the tests that reads pages."""
    spec = spec_from_file_location("fix_snippets", pythons.ROOT / "tests" / "fix_snippets.py")
    if spec is None or spec.loader is None:
        raise pythons.PythonsError("tests/fix_snippets.py is missing")
    module = module_from_spec(spec)
    sys.modules["fix_snippets"] = module
    spec.loader.exec_module(module)
    return module


def check_machine(asked: Sequence[str]) -> None:
    """Say at once what is missing on this machine, and not after half of the extras.

    Raises:
        pythons.PythonsError: the headers of Kerberos are missing, with which pip builds gssapi.
    """
    if "gssapi" in asked and shutil.which("krb5-config") is None:
        raise pythons.PythonsError(
            "the extra gssapi is built from source, and krb5-config is missing: install Debian's package libkrb5-dev"
        )


def main() -> int:
    """Try what is asked for; 0 when all of it works."""
    parser = argparse.ArgumentParser(description="Install the wheel as users do.")
    parser.add_argument("what", nargs="*", choices=[*USES, "pages", []], help="default: all")
    asked = parser.parse_args().what or [*USES, "pages"]
    try:
        check_machine(asked)
        with tempfile.TemporaryDirectory(prefix="penstock-install-") as folder:
            wheel = the_wheel(Path(folder))
            lines = [f"{wheel.name}:"]
            for name in asked:
                started = time.monotonic()
                if name == "pages":
                    done = f"{follow_pages(wheel)} programs of {' and '.join(PAGES)}"
                else:
                    try_extra(wheel, name)
                    done = f"with the extra {name}"
                lines.append(f"  good, {time.monotonic() - started:4.0f} s: {done}")
    except pythons.PythonsError as error:
        print(f"try_install: {error}", file=sys.stderr)
        return 1
    print("\n".join(["", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
