# SPDX-License-Identifier: Apache-2.0
"""A definition is read as it was written, with variables filled in, and errors name their line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.errors import PipelineDefinitionError
from penstock.spark.pipeline.file import name_of, read_definition


def write(folder: Path, text: str) -> Path:
    path = folder / "p.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(source: object, **variables: str) -> str:
    with pytest.raises(PipelineDefinitionError) as caught:
        read_definition(source, variables)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone.toml") == (
        f"cannot read the pipeline file {str(tmp_path / 'gone.toml')!r}: No such file or directory"
    )


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xff\xfe")
    assert refusal(path).startswith(f"cannot read the pipeline file {str(path)!r}: 'utf-8' codec")


@pytest.mark.parametrize(
    ("text", "line"),
    [("[source]\nformat = \n", 2), ("a = 1\n\na = 2\n", 3), ("a = 1\nb = [1,\n", 2), ("[x\n", 1)],
    ids=["no value", "twice", "not closed", "header"],
)
def test_bad_toml_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path, text)
    assert refusal(path).startswith(f"{path}:{line}: not TOML: ")


def test_a_text_without_quotes_gets_a_hint(tmp_path: Path) -> None:
    path = write(tmp_path, "[pipeline]\nname = orders\n")
    assert refusal(path) == f"{path}:2: not TOML: invalid value (a text needs quotes)"


def test_variables_are_filled_in_everywhere(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[variables]\nday = "monday"\nrows = 5\nhot = true\n[source]\npath = "in/${day}/${rows}"\n'
        'list = ["${day}", { x = "${hot}" }]\nnumber = 3\n',
    )
    data = read_definition(path, {"day": "friday"}).data
    assert data == {"source": {"path": "in/friday/5", "list": ["friday", {"x": "true"}], "number": 3}}


def test_a_variable_needs_no_default(tmp_path: Path) -> None:
    path = write(tmp_path, '[source]\npath = "${day}"\n')
    assert read_definition(path, {"day": "friday"}).data == {"source": {"path": "friday"}}


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_PASSWORD", "hush")
    monkeypatch.delenv("PIPELINE_GONE", raising=False)
    assert read_definition({"a": {"b": "${env:PIPELINE_PASSWORD}!"}}).data == {"a": {"b": "hush!"}}
    assert refusal({"a": {"b": "${env:PIPELINE_GONE}"}}) == (
        "[a] b: the environment variable PIPELINE_GONE is not set"
    )


def test_two_dollars_are_one() -> None:
    assert read_definition({"a": {"b": "$${x} $5 $$ {y}"}}).data == {"a": {"b": "${x} $5 $$ {y}"}}


def test_a_variable_without_a_value_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, '[variables]\nserver = "a"\n[[steps]]\n\n\nsql = "${servers}"\n')
    assert refusal(path) == (
        f"{path}:6: [[steps]] 1, sql: ${{servers}} has no value: give it with --var servers=..., "
        "or a default in [variables]; did you mean server?"
    )


def test_something_else_in_braces_is_refused() -> None:
    assert refusal({"a": {"b": "${x y}"}}) == (
        "[a] b: ${x y} is no variable: write ${name}, or $${ for a plain ${"
    )


def test_a_given_variable_that_nothing_uses_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, '[variables]\nday = "x"\n[a]\nb = "${day}"\n')
    assert refusal(path, dya="friday") == (
        f"{path}: --var dya=...: nothing in it is called ${{dya}}; did you mean day?"
    )


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ("x", "[variables]: must be a table of defaults"),
        ({"a-b": "x"}, "[variables] a-b: a variable's name has letters, digits and _ only"),
        ({"a": [1]}, "[variables] a: must be a string, a number or true or false"),
    ],
    ids=["no table", "name", "value"],
)
def test_bad_defaults_are_refused(variables: object, problem: str) -> None:
    assert refusal({"variables": variables}).startswith(problem)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("sink",), "[sink]"),
        (("sink", "topic"), "[sink] topic"),
        (("sink", "options", "kafka", "acks"), "[sink] options.kafka.acks"),
        (("sink", "value", 2), "[sink] value[2]"),
        (("steps", 0), "[[steps]] 1"),
        (("steps", 1, "sql"), "[[steps]] 2, sql"),
    ],
)
def test_places_are_named_as_in_the_file(path: tuple[str | int, ...], name: str) -> None:
    assert name_of(path) == name


def test_a_key_that_is_missing_is_placed_at_its_table(tmp_path: Path) -> None:
    definition = read_definition(write(tmp_path, "\n\n[sink]\n"))
    assert definition.place(("sink", "topic")) == f"{definition.file}:3: "
    assert definition.place(("source",)) == f"{definition.file}: "


def test_secrets_of_the_sink_stay_references(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAFKA_SECRET", "hunter2")
    (tmp_path / "word").write_text("hunter3\n")
    definition = read_definition(
        {
            "source": {"options": {"password": f"${{file:{tmp_path}/word}}"}},
            "sink": {
                "options": {
                    "kafka": {"sasl": {"password": "${env:KAFKA_SECRET}", "username": "${user}"}},
                    "kafka.ssl.key.password": "$${x}${file:/nowhere}${own}",
                    "kafka.client.id": "${env:KAFKA_SECRET}",
                    "kafka.ssl.keystore.password": "a-literal",
                }
            },
        },
        {"user": "me", "own": "${env:HOME}"},
    )
    sink = definition.data["sink"]["options"]
    assert sink["kafka"] == {"sasl": {"password": "${env:KAFKA_SECRET}", "username": "me"}}
    assert sink["kafka.ssl.key.password"] == "$${x}${file:/nowhere}$${env:HOME}"
    assert sink["kafka.client.id"] == "hunter2"
    assert definition.data["source"]["options"]["password"] == "hunter3"
    assert (
        definition.hide("hunter2 hunter3 a-literal")
        == f"${{env:KAFKA_SECRET}} ${{file:{tmp_path}/word}} (hidden)"
    )


def test_a_key_store_is_a_reference_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEYSTORE_PASSWORD", "x")
    reference = "${keystore:/no/such.p12:kafka}"
    kept = read_definition({"sink": {"options": {"kafka.sasl.password": reference}}})
    assert kept.data["sink"]["options"]["kafka.sasl.password"] == reference
    text = refusal({"source": {"options": {"password": reference}}})
    assert "the file '/no/such.p12' cannot be read" in text


def test_a_file_that_a_variable_names_must_be_there() -> None:
    text = refusal({"source": {"options": {"password": "${file:/no/such/file}"}}})
    assert text.startswith("[source] options.password: ")
    assert "the file '/no/such/file' cannot be read" in text


def test_a_long_text_beside_a_variable_takes_no_longer_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "hunter2")
    began = time.thread_time()
    definition = read_definition({"a": {"password": "x" * 30_000 + " y${env:WORD}"}})
    assert definition.hide("yhunter2") == "y${env:WORD}"
    assert time.thread_time() - began < 5
