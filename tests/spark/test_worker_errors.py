# SPDX-License-Identifier: Apache-2.0
"""Errors as Spark writes them down: the message alone where it is ours, the traceback where it is not."""

from __future__ import annotations

import io
import os
import pickle

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.util import handle_worker_exception

from penstock.errors import ConfigError, KafkaError
from penstock.spark.worker import plain_errors

VARIABLE = "SPARK_HIDE_TRACEBACK"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setitem(os.environ, VARIABLE, "")  # put back afterwards, whatever is set meanwhile


def shown(error: Exception, *, pickling: bool = False) -> str:
    """What the query shows of an error that is raised in a worker."""
    out = io.BytesIO()
    try:
        with plain_errors(pickling=pickling):
            raise error
    except Exception as raised:
        handle_worker_exception(raised, out)
    return out.getvalue()[8:].decode()


def test_our_errors_are_one_sentence() -> None:
    assert shown(ConfigError("no topic")) == "penstock.errors.ConfigError: no topic\n"


def test_causes_are_not_shown_again() -> None:
    error = KafkaError("what happened, and why")
    error.__cause__ = ValueError("why")
    assert shown(error) == "penstock.errors.KafkaError: what happened, and why\n"


def test_mistakes_keep_their_traceback() -> None:
    text = shown(ZeroDivisionError("a mistake"))
    assert text.startswith("Traceback")
    assert "test_worker_errors.py" in text


def test_spark_lets_errors_pass_while_it_pickles() -> None:
    class Writer:
        def __getstate__(self) -> dict[str, object]:
            with plain_errors(pickling=True):
                raise ConfigError("no topic")

    with pytest.raises(KafkaError, match=r"^no topic$") as caught:
        CloudPickleSerializer().dumps(Writer())
    assert isinstance(caught.value, pickle.PickleError)
    assert shown(ConfigError("no topic"), pickling=True) == "penstock.errors.ConfigError: no topic\n"


def test_nothing_happens_where_nothing_is_raised() -> None:
    with plain_errors():
        pass
    assert os.environ[VARIABLE] == ""
