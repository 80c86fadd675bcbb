# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin, as users meet it: pytest runs inside these tests, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock.devbroker import cache_home
from penstock.testing import plugin

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
# Asked now: inside a test that runs pytest the home folder is another one, and Kafka would be fetched again.
KAFKA_FOLDER = cache_home()

# A fake cluster that only shows what it was made with.
STAND_IN = """
    import sys, types

    class FakeKafka:
        running = 0

        def __init__(self, **options):
            self.options = options

        def __enter__(self):
            FakeKafka.running += 1
            return self

        def __exit__(self, *_):
            FakeKafka.running -= 1

    sys.modules["penstock.testing.server"] = types.SimpleNamespace(FakeKafka=FakeKafka)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that runs pytest with this plugin and no other, on a test file with the given text."""
    # By name and not by entry point: that way the plugin is the one of these sources, installed or not.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run_tests(text: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess(
            "-p", "pytest_penstock", "--strict-markers", "-W", "error", *args
        )

    return run_tests


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": "pytest_penstock"}


def test_loading_the_plugin_imports_nothing_of_the_package() -> None:
    code = "import sys, pytest_penstock; print(*(name for name in sys.modules if name.split('.')[0] == 'penstock'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == []


@pytest.mark.slow
def test_a_run_that_asks_for_nothing_imports_nothing(run: Any) -> None:
    result = run(
        """
        import sys

        def test_nothing():
            assert "penstock" not in sys.modules
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_markers_make_the_fake_cluster_the_nearest_first(pytester: pytest.Pytester, run: Any) -> None:
    pytester.makeconftest(STAND_IN)
    result = run(
        """
        import pytest

        pytestmark = pytest.mark.kafka(brokers=2, topics={"a": 1})

        def test_module(kafka):
            assert kafka.options == {"brokers": 2, "topics": {"a": 1}}

        @pytest.mark.kafka(brokers=3)
        def test_function(kafka):
            assert kafka.options == {"brokers": 3, "topics": {"a": 1}}

        @pytest.mark.parametrize("kafka", [{"topics": {"b": 5}}, {"brokers": 9}], indirect=True)
        def test_parameter(kafka):
            assert kafka.options in ({"brokers": 2, "topics": {"b": 5}}, {"brokers": 9, "topics": {"a": 1}})
        """
    )
    result.assert_outcomes(passed=4)


@pytest.mark.slow
def test_each_test_has_a_cluster_of_its_own_which_ends_with_it(pytester: pytest.Pytester, run: Any) -> None:
    pytester.makeconftest(STAND_IN)
    result = run(
        """
        seen = []

        def test_one(kafka):
            assert (kafka.options, kafka.running) == ({}, 1)
            seen.append(kafka)

        def test_two(kafka):
            assert kafka.running == 1
            assert kafka not in seen

        def test_three():
            assert seen[0].running == 0
        """
    )
    result.assert_outcomes(passed=3)


@pytest.mark.slow
def test_a_wrong_marker_or_parameter_is_explained(pytester: pytest.Pytester, run: Any) -> None:
    pytester.makeconftest(STAND_IN)
    result = run(
        """
        import pytest

        @pytest.mark.kafka(3)
        def test_marker(kafka):
            pass

        @pytest.mark.parametrize("kafka", [3], indirect=True)
        def test_parameter(kafka):
            pass
        """
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines_random(["*takes named arguments only*", "*is a dict such as*"])


@pytest.mark.slow
def test_an_argument_that_a_cluster_does_not_take_is_explained(run: Any) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.kafka(broker=3)
        def test_name(kafka):
            pass

        @pytest.mark.kafka(topics=["orders"])
        def test_topics(kafka):
            pass

        @pytest.mark.kafka(release="0.8")
        def test_release(kafka):
            pass

        @pytest.mark.kafka(topics={"or ders": 1})
        def test_topic_name(kafka):
            pass
        """
    )
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines_random(
        [
            "the fixture 'kafka' cannot be made with kafka(broker=3): there is no argument 'broker'; did you mean *",
            "*kafka(topics=?'orders'?): topics are names with numbers of partitions, like {'orders': 3}*",
            "*kafka(release='0.8'): the fake cluster knows no Kafka 0.8, only *",
            "*kafka(topics={'or ders': 1}): *",
        ]
    )
    result.stdout.no_fnmatch_line("*__init__*")


@pytest.mark.slow
def test_a_fixture_of_ones_own_wins(run: Any) -> None:
    result = run(
        """
        import pytest

        @pytest.fixture
        def kafka():
            return "mine"

        def test_mine(kafka):
            assert kafka == "mine"
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_the_fake_cluster_takes_records(run: Any) -> None:
    result = run(
        """
        import pytest
        from penstock import Producer

        @pytest.mark.kafka(brokers=2, topics={"orders": 3})
        def test_send(kafka):
            with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
                assert producer.send("orders", b"v", partition=2).result(60).offset == 0
                assert len(producer.partitions_for("orders")) == 3
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_tests_for_a_real_broker_are_skipped_where_java_is_missing(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = run(
        """
        def test_one(real_kafka):
            raise AssertionError

        def test_two(real_kafka):
            raise AssertionError
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*real_kafka: no 'java' was found*install a Java runtime*"])


def test_a_java_that_is_there_is_no_reason_to_skip(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17'\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(request.session, "items", [])  # whatever else is run now
    assert repr(plugin.real_kafka_or_skip(request.session)) == "<DevCluster of 1, stopped>"


def test_a_mark_of_any_test_gives_the_shared_broker_secured_listeners(run: Any) -> None:
    result = run(
        """
        import pytest
        from penstock.testing import plugin

        def test_first(request):
            assert len(plugin.real_kafka_or_skip(request.session).accesses) == 10

        @pytest.mark.skip(reason="only its mark matters")
        @pytest.mark.kafka(security="SASL_SSL")
        def test_secured(real_kafka):
            raise AssertionError
        """
    )
    result.assert_outcomes(passed=1, skipped=1)


def test_a_mark_gives_the_fake_cluster_its_security(run: Any) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.kafka(security="SASL_SSL")
        def test_secured(kafka):
            assert kafka.client_options()["security.protocol"] == "SASL_SSL"
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.broker
@pytest.mark.slow
def test_the_real_broker_is_shared_by_the_run(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(KAFKA_FOLDER))
    result = run(
        """
        from penstock import Producer

        seen = []

        def test_send(real_kafka):
            seen.append(real_kafka)
            real_kafka.create_topic("orders", 1)
            with Producer(bootstrap_servers=real_kafka.bootstrap_servers) as producer:
                assert producer.send("orders", b"v").result(60).offset == 0

        def test_same(real_kafka):
            assert seen == [real_kafka]
        """
    )
    result.assert_outcomes(passed=2)
