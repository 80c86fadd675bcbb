# SPDX-License-Identifier: Apache-2.0
"""Sets of jars: which modules they come from, and the checksum that each file must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Dependency:
    """One module to fetch; ``transitive`` says whether what it depends on comes along."""

    organisation: str
    name: str
    version: str
    transitive: bool

    @classmethod
    def parse(cls, coordinate: str, *, transitive: bool = False) -> Dependency:
        """Make a dependency from ``organisation:name:version``."""
        organisation, name, version = coordinate.split(":")
        return cls(organisation, name, version, transitive)

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


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

    @classmethod
    def pinned(cls, title: str, folder: str, jars: Mapping[str, str]) -> JarSet:
        """A set of which every jar is named, by its coordinate, so that nothing is left to be resolved."""
        dependencies = tuple(Dependency.parse(coordinate) for coordinate in jars)
        checksums = zip((each.file_name for each in dependencies), jars.values(), strict=True)
        return cls(title, folder, dependencies, dict(checksums))
