# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the fault suite: programs with a Spark session that live across tests, and a scene for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spark.faults.driver import SparkDriver
from spark.faults.rules import Marks
from spark.faults.scene import Scene
from spark.faults.standalone import StandaloneCluster

from penstock.devbroker import DevCluster

MakeScene = Callable[..., Scene]


@pytest.fixture(scope="session")
def local_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """A program whose tasks run in its own Java process; a task may fail three times."""
    folder = tmp_path_factory.mktemp("local-driver")
    driver = SparkDriver("local[2,4]", Marks(folder / "marks"), folder / "spark.log")
    yield driver
    driver.stop()


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def scene(local_driver: SparkDriver, dev_cluster: DevCluster, tmp_path: Path) -> Scene:
    """A scene on one broker, with tasks in the driver's Java process."""
    return Scene(local_driver, dev_cluster.bootstrap_servers, tmp_path)
