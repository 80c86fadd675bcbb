# SPDX-License-Identifier: Apache-2.0
"""Prints the entry of a release of Kafka for `devbroker/releases/pinned.py`: all of its jars, with their checksums.

    python tools/pin_kafka.py 2.8.2 [3.9.1 ...]

Apache Ivy, which PySpark brings, resolves what the release needs from its row in `devbroker/releases/release.py`, and
fetches it into a temporary folder. Ivy compares each jar with the checksum that is published beside it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.devbroker.machine import find_java
from penstock.devbroker.releases.fetch import try_find_ivy
from penstock.devbroker.releases.release import Release, find_release


def module_file(release: Release) -> str:
    """What Ivy is asked for: the server with all it needs, and the others alone, in exactly their versions."""
    wanted = "".join(
        f'    <dependency org="{root.organisation}" name="{root.name}" rev="{root.version}"'
        f' conf="default->default" transitive="{str(root.transitive).lower()}"/>\n'
        for root in release.roots
    )
    exact = "".join(
        f'    <override org="{root.organisation}" module="{root.name}" rev="{root.version}"/>\n'
        for root in release.roots
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="penstock" module="pin"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{wanted}{exact}  </dependencies>\n</ivy-module>\n"
    )


def fetch(release: Release, folder: Path) -> list[Path]:
    """Let Ivy put every jar into a folder named after its organisation."""
    ivy = try_find_ivy()
    if ivy is None:
        raise SystemExit("this needs PySpark, which brings Apache Ivy")
    (folder / "ivy.xml").write_text(module_file(release), encoding="utf-8")
    command = [
        *(str(find_java()), f"-Divy.default.ivy.user.dir={folder / 'home'}", "-jar", str(ivy)),
        *("-cache", str(folder / "cache"), "-ivy", str(folder / "ivy.xml"), "-types", "jar", "bundle"),
        *("-retrieve", f"{folder / 'jars'}/[organisation]/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Ivy did not resolve Kafka {release}:\n{done.stdout}{done.stderr}")
    return sorted((folder / "jars").glob("*/*.jar"))


def coordinate(jar: Path, cache: Path) -> str:
    """The organisation, name and version of a jar; Ivy's cache tells the name from the version."""
    organisation = jar.parent.name
    for module in (cache / organisation).iterdir():
        version = jar.stem.removeprefix(f"{module.name}-")
        if version != jar.stem and (module / f"ivy-{version}.xml").exists():
            return f"{organisation}:{module.name}:{version}"
    raise SystemExit(f"{jar.name} has no module of its own: it has a classifier, which the table cannot name")


def main(versions: list[str]) -> int:
    """Print the entries for `releases/pinned.py`."""
    for version in versions:
        release = find_release(version)
        with tempfile.TemporaryDirectory(prefix="pin-kafka-") as name:
            folder = Path(name)
            print(f'        "{version}": {{')
            for jar in fetch(release, folder):
                checksum = hashlib.sha256(jar.read_bytes()).hexdigest()
                print(f'            "{coordinate(jar, folder / "cache")}": "{checksum}",')
            print("        },", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
