# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from cli.support import FakeProducer

from penstock.cli.main import build_parser


@pytest.fixture
def fake() -> FakeProducer:
    return FakeProducer()


@pytest.fixture
def parse() -> Callable[..., argparse.Namespace]:
    return lambda *argv: build_parser().parse_args(argv)
