# SPDX-License-Identifier: Apache-2.0
"""Fetch jars, once per user: Apache Kafka's, and any other set that is pinned the same way.

No installer is needed: PySpark's package carries Apache Ivy, and where PySpark is missing Maven does as well.
Both know by themselves where jars are published. The jars are downloaded into a scratch folder that is
renamed when it is complete, under a file lock, so that a reader never sees half a Kafka and two processes
never fetch at once.

The jars are programs that will be run, so they must be exactly the ones that were pinned: every one of them, and no
other. They are compared after the download, and again whenever they are used: a cache can be written to by others.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TextIO

from penstock.devbroker.machine import DevBrokerError, find_java, with_tail
from penstock.devbroker.settings import KAFKA_VERSION, SCALA_VERSION, cache_home, jar_folder

# A download that takes longer than this hangs: the slowest one seen took under two minutes.
FETCH_TIMEOUT_SECONDS = 900.0
_SERVER = f"kafka_{SCALA_VERSION}"
_TOOLS = "kafka-tools"
_LOG_BINDING = "log4j-slf4j-impl"
_INSTALL_HINT = "pip install pyspark (it carries Apache Ivy), or install Maven ('mvn')"

# A pipe or a CI log keeps every line, so there a line is due only this often.
_PLAIN_INTERVAL = 5.0
_TERMINAL_INTERVAL = 0.1


@dataclass(frozen=True)
class Dependency:
    """One module to fetch; ``transitive`` says whether what it depends on comes along."""

    organisation: str
    name: str
    version: str
    transitive: bool


# The tools are fetched alone: what they need beyond the server's jars is Kafka Connect with a web server,
# twice the download for one tool that is of no use here. The log binding is what lets slf4j, Kafka's
# interface, reach log4j.
DEPENDENCIES = (
    Dependency("org.apache.kafka", _SERVER, KAFKA_VERSION, transitive=True),
    Dependency("org.apache.kafka", _TOOLS, KAFKA_VERSION, transitive=False),
    Dependency("org.apache.logging.log4j", _LOG_BINDING, "2.25.4", transitive=False),
)


@dataclass(frozen=True)
class JarSet:
    """Jars that are fetched together.

    Attributes:
        title: what they are, with the version.
        folder: the name of their folder below the cache.
        dependencies: the modules they come from.
        sha256: by file name: all jars of the set, each of which must be these very bytes.
    """

    title: str
    folder: str
    dependencies: tuple[Dependency, ...]
    sha256: Mapping[str, str]


# The jars of the development broker, each by its SHA-256. Another version of Kafka needs another table: fetch its jars
# in a place that is trusted, compare them with what their authors have signed, and write down the checksums.
_KAFKA_4_3_1: Final = {
    "argparse4j-0.7.0.jar": "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56",
    "caffeine-3.2.0.jar": "ec411dfdf0c03f25218648ce89861630b71680e5858a9a7278ebac8e55cab3d7",
    "commons-beanutils-1.11.0.jar": "9e44ba68ec9a3f21286fa2a8bbb003b735c0f69101bb43144b79f4f8aaa74709",
    "commons-collections-3.2.2.jar": "eeeae917917144a68a741d4c0dff66aa5c5c5fd85593ff217bced3fc8ca783b8",
    "commons-digester-2.1.jar": "e0b2b980a84fc6533c5ce291f1917b32c507f62bcad64198fff44368c2196a3d",
    "commons-logging-1.3.5.jar": "6d7a744e4027649fbb50895df9497d109f98c766a637062fe8d2eabbb3140ba4",
    "commons-validator-1.10.1.jar": "ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa",
    "hash4j-0.22.0.jar": "23028a3fd006e530bf495f551083208187cafd8f80624d048eba56442f16a50e",
    "HdrHistogram-2.2.2.jar": "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8",
    "jackson-annotations-2.21.jar": "53ca085f4a150f703f49e1aabd935bd03b43e1ea3d55d135438292af22cef56b",
    "jackson-core-2.21.2.jar": "12e8655b100267b44d0f14d01b1f5082a5105e616174dc4307be1a761e92407b",
    "jackson-databind-2.21.2.jar": "8c982f01f148d805f0aaac2339011244757e0df7c6ff8951f2fa3f433b8ed849",
    "jackson-dataformat-csv-2.21.2.jar": "682f8c7977e02a42748426bf54946e32e52e2f80b84b6642801ab12bd541368a",
    "jackson-dataformat-yaml-2.21.2.jar": "d25551812fa0c14f37cabaa9401e63eadcea42ce36311183af5622d5bc8a1bc7",
    "jackson-datatype-jdk8-2.21.2.jar": "e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7",
    "jopt-simple-5.0.4.jar": "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28",
    "jose4j-0.9.6.jar": "7314af50cde9c99e8eaf43eee617a23edcc6bb43036221064355094999d837ef",
    "jspecify-1.0.0.jar": "1fad6e6be7557781e4d33729d49ae1cdc8fdda6fe477bb0cc68ce351eafdfbab",
    "kafka-clients-4.3.1.jar": "52501b7b47510c66f898871adaf6d2968ab7246561d44ced43643a8a587f0b36",
    "kafka-coordinator-common-4.3.1.jar": "66a86b8c89718216ffa72fe4e44b9d1bdf3472e4cb9200c36a0742a25febbdba",
    "kafka-group-coordinator-4.3.1.jar": "4ab56d002e1624185c874199e9e0ffb243dbeb9f68b4d0cadf48ce2f617a1126",
    "kafka-group-coordinator-api-4.3.1.jar": "d81bc1a3739ff6c9b21815baae00022306342a16d3d94e6a2621201b9980a30d",
    "kafka-metadata-4.3.1.jar": "4d73a96c6474a4ebdd67a1cee14da1a94cfd6bb9e6e252685ba5667d8ab7f898",
    "kafka-raft-4.3.1.jar": "46abbf89806dd22d848e997cdfb1431524cab4ec88e38a7d2806e20b24a70609",
    "kafka-server-4.3.1.jar": "01d736599ec3b0cdbb0480c15219170b28cdae189785e7f0c6f1f26e528eaebc",
    "kafka-server-common-4.3.1.jar": "d7c719f749579a399011f0df7414de8a78f10f074a6122caa550fdb141351575",
    "kafka-share-coordinator-4.3.1.jar": "8ceeed7346127e652ea5c650b217890aaff14919f967d27fadce420745bd3066",
    "kafka-storage-4.3.1.jar": "97e3facddd2914a58f28ec91ef35f8da69963eab3651196e97f487924f6dac98",
    "kafka-storage-api-4.3.1.jar": "bc2b22639fa554494461d101d599e01bae840d97c4f46e18fdf3d2fe41a47098",
    "kafka-tools-4.3.1.jar": "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c",
    "kafka-tools-api-4.3.1.jar": "dcf6785742e0c8ab11a0fc09c62f1192e11e997dc629669a8db82aa40d933c31",
    "kafka-transaction-coordinator-4.3.1.jar": "c64aaa2a88d8fd382c4800204872917686e542043c7916c9e8797d939d8eb313",
    "kafka_2.13-4.3.1.jar": "b098abef5ff878e76f60cd6c559b9baa5663ccb1b55f2837558b22c329d32423",
    "log4j-api-2.25.4.jar": "c4b642a7f047275215de117e0e3847eb2c7711d84a0aa7433e7b3c096daf341d",
    "log4j-core-2.25.4.jar": "10fee2c0485d54fa44ee75d314f6295508f7b932281873db61a91b88073200e6",
    "log4j-slf4j-impl-2.25.4.jar": "7ac68a0afcc83d54f48d116d79370a43f0a2a6b71b5c1d6dda943bb6a95ddbaa",
    "lz4-java-1.10.2.jar": "252dabd586d22149a31661a8afc1a50747714eb1a298bd4a6e780c8c91a13866",
    "metrics-core-2.2.0.jar": "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c",
    "pcollections-4.0.2.jar": "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef",
    "re2j-1.8.jar": "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7",
    "scala-library-2.13.18.jar": "4e85d96ff7bc7dc627985523c3541b9917aaa08e956391380c42db21a2c4e5a0",
    "scala-logging_2.13-3.9.6.jar": "0ad0c3f4d89d538b3b6c300158555e266aa69cf1b5f6522aba8b5bad238eb994",
    "scala-reflect-2.13.18.jar": "6935ff1982b2ac93d695f15aa66921be2f602921277afe002f018fd8c7d6e29b",
    "slf4j-api-1.7.36.jar": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
    "snakeyaml-2.5.jar": "e6682acf1ace77508ef13649cbf4f8d09d2cf5457bdb61d25ffb6ac0233d78dd",
    "snappy-java-1.1.10.7.jar": "4c766cb3f855415ee734b2392949a0b6f12a60879334a74518deaf6270d32e36",
    "zstd-jni-1.5.6-10.jar": "b6c3237e24b8252a5a9c3a0e1ae30ef8f323412e74bd358548b7a9e527d676df",
}

# By the version of Kafka, and the name of the file.
KAFKA_JARS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {"4.3.1": MappingProxyType(_KAFKA_4_3_1)}
)

KAFKA = JarSet(
    f"Apache Kafka {KAFKA_VERSION}", jar_folder(Path()).name, DEPENDENCIES, KAFKA_JARS[KAFKA_VERSION]
)


@dataclass(frozen=True)
class FetchTool:
    """A way to fetch: its name, the command to run, the files it wants written first, and where it keeps what it got.

    What it got survives a failure, so that the next attempt need not begin anew, and goes with a success.
    """

    name: str
    command: tuple[str, ...]
    files: tuple[tuple[Path, str], ...]
    cache: Path


def kafka_jars(*, home: Path | None = None, stream: TextIO | None = None) -> Path:
    """Return the folder with Kafka's jars, after fetching them if this user has none yet; see ``fetch_jars``."""
    return fetch_jars(KAFKA, home=home, stream=stream)


def fetch_jars(wanted: JarSet, *, home: Path | None = None, stream: TextIO | None = None) -> Path:
    """Return the folder with a set of jars, after fetching them if this user does not have them yet.

    Args:
        wanted: Which jars.
        home: The cache folder; ``cache_home()`` when None.
        stream: Where progress is shown; standard error when None.

    Raises:
        DevBrokerError: Java or a download tool is missing, the download failed, or a jar is not the one that was
            pinned.
    """
    root = cache_home() if home is None else home
    target = root / wanted.folder
    if is_complete(target, wanted):
        _refuse_altered(target, wanted)
        return target
    java = find_java()
    with _fetch_lock(root):
        # Most likely the process that held the lock before us has fetched it.
        if not is_complete(target, wanted):
            _fetch_into(target, wanted, java, root, ProgressLine(stream))
        else:
            _refuse_altered(target, wanted)
    return target


def _refuse_altered(folder: Path, wanted: JarSet) -> None:
    """Remove jars that are not the pinned ones, and say so: others that were put there may be wrong, too.

    Raises:
        DevBrokerError: there were such jars.
    """
    altered = altered_jars(folder, wanted)
    if not altered:
        return
    for name in altered:
        (folder / name).unlink(missing_ok=True)
    raise DevBrokerError(
        f"{wanted.title} in {folder} was changed after it was fetched; nothing of it was run. Removed: "
        f"{', '.join(altered.values())}. Find out who may write to that folder, then run it again: what is missing is "
        "fetched anew"
    )


def is_complete(folder: Path, wanted: JarSet | None = None) -> bool:
    """Say whether ``folder`` holds every jar; of Kafka's, when no other set is named."""
    return all((folder / name).is_file() for name in (wanted or KAFKA).sha256)


def altered_jars(folder: Path, wanted: JarSet) -> dict[str, str]:
    """Return the jars in ``folder`` that are not the pinned ones, by name, each with what is wrong with it."""
    altered = {}
    # Java's `folder/*` takes all of these, whichever way they are written.
    for path in sorted(each for each in folder.iterdir() if each.name.lower().endswith(".jar")):
        pinned = wanted.sha256.get(path.name)
        found = _sha256(path)
        if pinned is None:
            altered[path.name] = f"{path.name} (not one of the set)"
        elif found != pinned:
            altered[path.name] = f"{path.name} (SHA-256 {found}, pinned {pinned})"
    return altered


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def try_find_ivy() -> Path | None:
    """Return the Ivy jar inside PySpark's package, or None. PySpark is looked up, not imported."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        jars = sorted(Path(location).glob("jars/ivy-*.jar"))
        if jars:
            return jars[-1]
    return None


def ivy_tool(
    java: Path,
    ivy_jar: Path,
    scratch: Path,
    home: Path,
    dependencies: tuple[Dependency, ...] = DEPENDENCIES,
) -> FetchTool:
    """Return the Ivy command that puts every jar into ``scratch/jars``."""
    module_file = scratch / "ivy.xml"
    ivy_home = home / "ivy"
    command = (
        str(java),
        f"-Divy.default.ivy.user.dir={ivy_home}",
        *("-jar", str(ivy_jar)),
        *("-cache", str(ivy_home / "cache")),
        *("-ivy", str(module_file)),
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{scratch / 'jars'}/[artifact]-[revision](-[classifier]).[ext]"),
    )
    wanted = "".join(
        f'    <dependency org="{d.organisation}" name="{d.name}" rev="{d.version}"'
        f' conf="default->default" transitive="{str(d.transitive).lower()}"/>\n'
        for d in dependencies
    )
    text = (
        '<ivy-module version="2.0">\n  <info organisation="penstock" module="devbroker"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{wanted}  </dependencies>\n</ivy-module>\n"
    )
    return FetchTool("Apache Ivy", command, ((module_file, text),), ivy_home)


def maven_tool(
    maven: Path, scratch: Path, home: Path, dependencies: tuple[Dependency, ...] = DEPENDENCIES
) -> FetchTool:
    """Return the Maven command that puts every jar into ``scratch/jars``."""
    pom = scratch / "pom.xml"
    repository = home / "m2"
    command = (
        *(str(maven), "--batch-mode", "--file", str(pom)),
        f"-Dmaven.repo.local={repository}",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={scratch / 'jars'}",
        "-DincludeScope=runtime",
    )
    everything = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    wanted = "".join(
        f"    <dependency><groupId>{d.organisation}</groupId><artifactId>{d.name}</artifactId>"
        f"<version>{d.version}</version>{'' if d.transitive else everything}</dependency>\n"
        for d in dependencies
    )
    text = (
        "<project>\n  <modelVersion>4.0.0</modelVersion>\n"
        "  <groupId>penstock</groupId><artifactId>devbroker</artifactId><version>1</version>\n"
        f"  <dependencies>\n{wanted}  </dependencies>\n</project>\n"
    )
    return FetchTool("Maven", command, ((pom, text),), repository)


def find_tools(wanted: JarSet, java: Path, scratch: Path, home: Path) -> list[FetchTool]:
    """Return the ways to fetch that this machine has, the quickest first.

    Raises:
        DevBrokerError: There is none.
    """
    tools: list[FetchTool] = []
    ivy_jar = try_find_ivy()
    if ivy_jar is not None:
        tools.append(ivy_tool(java, ivy_jar, scratch, home, wanted.dependencies))
    maven = shutil.which("mvn")
    if maven is not None:
        tools.append(maven_tool(Path(maven), scratch, home, wanted.dependencies))
    if not tools:
        raise DevBrokerError(f"nothing here can fetch {wanted.title}: {_INSTALL_HINT}")
    return tools


def _fetch_into(target: Path, wanted: JarSet, java: Path, home: Path, progress: ProgressLine) -> None:
    """Fetch into a scratch folder with the first tool that succeeds, and rename it to ``target``."""
    title = f"Fetching {wanted.title}"
    started = time.monotonic()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=home) as scratch_name:
        scratch = Path(scratch_name)
        jars = scratch / "jars"
        tools = find_tools(wanted, java, scratch, home)
        for tool in tools:
            jars.mkdir(exist_ok=True)
            for path, text in tool.files:
                path.write_text(text, encoding="utf-8")
            tail = run_with_progress(tool, jars, title, progress)
            altered = altered_jars(jars, wanted) if tail is None else {}
            if tail is None and not altered and is_complete(jars, wanted):
                break
            if altered:
                tail = [f"other bytes than were pinned, which are removed: {', '.join(altered.values())}"]
                shutil.rmtree(tool.cache, ignore_errors=True)  # it would give the same again
            elif tail is None:
                missing = [name for name in wanted.sha256 if not (jars / name).is_file()]
                tail = [f"missing: {', '.join(missing)}"]
            failures.append(with_tail(f"{tool.name} did not fetch {wanted.title}", tail or ()))
            shutil.rmtree(jars)
        else:
            progress.finish(f"{title}: failed")
            raise DevBrokerError("\n".join(failures))
        if target.exists():
            # Left by an older version of this package that wanted other jars; is_complete() said so.
            shutil.rmtree(target)
        count, megabytes = measure(jars)
        os.rename(jars, target)
        for tool in tools:  # else every jar would be there twice
            shutil.rmtree(tool.cache, ignore_errors=True)
    seconds = time.monotonic() - started
    progress.finish(
        progress_text(f"Fetched {wanted.title}", jars=count, megabytes=megabytes, seconds=seconds)
    )


def measure(folder: Path) -> tuple[int, float]:
    """Return how many jars are in ``folder`` and how many megabytes they are."""
    sizes = [path.stat().st_size for path in folder.glob("*.jar")]
    return len(sizes), sum(sizes) / 1e6


class DownloadCounter:
    """Reads a download tool's output and counts what it has fetched so far."""

    # Ivy prints "... (123kB)" under each file, Maven "Downloaded from x: y.jar (1.2 MB at 3 MB/s)".
    _IVY_DONE = re.compile(r"\[SUCCESSFUL \]")
    _MAVEN_DONE = re.compile(r"Downloaded from .*\.jar \(")
    _SIZE = re.compile(r"\((\d+(?:\.\d+)?) ?(kB|MB)")
    _MODULE = re.compile(r"^\s+found [^#]+#([^;]+);")

    def __init__(self) -> None:
        self.jars = 0
        self.megabytes = 0.0
        self.note = ""

    def read(self, line: str) -> None:
        """Take one line of output into account."""
        module = self._MODULE.search(line)
        if module is not None:
            self.note = f"found {module.group(1)}"
        if self._IVY_DONE.search(line) or self._MAVEN_DONE.search(line):
            self.jars += 1
            self.note = ""
        size = self._SIZE.search(line)
        if size is not None:
            self.megabytes += float(size.group(1)) / (1000 if size.group(2) == "kB" else 1)


def run_with_progress(tool: FetchTool, jars: Path, title: str, progress: ProgressLine) -> list[str] | None:
    """Run ``tool``, showing progress. Return None when it succeeded, else the last lines that it printed."""
    started = time.monotonic()
    counter = DownloadCounter()
    tail: deque[str] = deque(maxlen=40)
    try:
        process = subprocess.Popen(
            tool.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=jars.parent,
        )
    except OSError as error:
        return [str(error)]
    alarm = threading.Timer(FETCH_TIMEOUT_SECONDS, process.kill)
    alarm.daemon = True
    alarm.start()
    try:
        for line in process.stdout or ():
            tail.append(line)
            counter.read(line)
            now = time.monotonic()
            text = progress_text(
                title,
                jars=counter.jars,
                megabytes=counter.megabytes,
                seconds=now - started,
                note=counter.note,
            )
            progress.update(text, now)
        return None if process.wait() == 0 else list(tail)
    finally:
        alarm.cancel()
        # Ctrl-C lands here with the tool still at work; left alone it would go on writing into a deleted
        # folder.
        _end_process(process)


def _end_process(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def _fetch_lock(home: Path) -> Iterator[None]:
    """Hold the lock that lets one process per user fetch at a time. The kernel frees it when the process dies."""
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "fetch.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- progress


def progress_text(title: str, *, jars: int, megabytes: float, seconds: float, note: str = "") -> str:
    """Return what a progress line says, e.g. ``Fetching Kafka: 12 jars, 8.3 MB, 10 s``."""
    parts = [f"{jars} jar{'' if jars == 1 else 's'}", f"{megabytes:.1f} MB", f"{seconds:.0f} s"]
    if note:
        parts.append(note)
    return f"{title}: {', '.join(parts)}"


class ProgressLine:
    """Writes progress to a stream: one line that updates itself on a terminal, now and then a plain line elsewhere.

    Args:
        stream: Where to write; standard error when None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._next_due: float | None = None
        self._width = 0

    def update(self, text: str, now: float) -> None:
        """Show ``text`` unless something was shown a moment before ``now``."""
        if self._next_due is not None and now < self._next_due:
            return
        self._next_due = now + (_TERMINAL_INTERVAL if self._is_terminal else _PLAIN_INTERVAL)
        if self._is_terminal:
            self._rewrite(text)
        else:
            self._write(text + "\n")

    def finish(self, text: str) -> None:
        """Show ``text`` in any case, and end the line."""
        if self._is_terminal:
            self._rewrite(text)
            self._write("\n")
            self._width = 0
        else:
            self._write(text + "\n")

    def _rewrite(self, text: str) -> None:
        padding = " " * max(0, self._width - len(text))
        self._write(f"\r{text}{padding}")
        self._width = len(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
