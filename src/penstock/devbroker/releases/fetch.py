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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from penstock.devbroker.machine import DevBrokerError, find_java, with_tail
from penstock.devbroker.releases.jars import Dependency, JarSet
from penstock.devbroker.releases.release import NEWEST, Release
from penstock.devbroker.settings import cache_home

# A download that takes longer than this hangs: the slowest one seen took under two minutes.
FETCH_TIMEOUT_SECONDS = 900.0
_INSTALL_HINT = "pip install pyspark (it carries Apache Ivy), or install Maven ('mvn')"

# With its version: by its short name Maven would run the newest one that is published. Needs Maven 3.6.3 or later.
_MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

# A pipe or a CI log keeps every line, so there a line is due only this often.
_PLAIN_INTERVAL = 5.0
_TERMINAL_INTERVAL = 0.1


# The jars of the newest release, which most of the tests run.
KAFKA = NEWEST.jars


@dataclass(frozen=True)
class FetchTool:
    """A way to fetch: its name, the command to run, the files it wants written first, and where it keeps what it got.

    What it got is kept after a failure, so that the next attempt need not begin anew, and deleted after a success.
    """

    name: str
    command: tuple[str, ...]
    files: tuple[tuple[Path, str], ...]
    cache: Path


def kafka_jars(release: Release = NEWEST, *, home: Path | None = None, stream: TextIO | None = None) -> Path:
    """Return the folder with Kafka's jars, after fetching them if this user has none yet; see ``fetch_jars``."""
    return fetch_jars(KAFKA if release == NEWEST else release.jars, home=home, stream=stream)


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
    dependencies: tuple[Dependency, ...],
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


def maven_tool(maven: Path, scratch: Path, home: Path, dependencies: tuple[Dependency, ...]) -> FetchTool:
    """Return the Maven command that puts every jar into ``scratch/jars``."""
    pom = scratch / "pom.xml"
    repository = home / "m2"
    command = (
        *(str(maven), "--batch-mode", "--strict-checksums", "--file", str(pom)),
        f"-Dmaven.repo.local={repository}",
        f"{_MAVEN_PLUGIN}:copy-dependencies",
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
