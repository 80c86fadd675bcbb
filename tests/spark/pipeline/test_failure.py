# SPDX-License-Identifier: Apache-2.0
"""What Spark says becomes one line with the cause."""

from __future__ import annotations

import pytest

from penstock.errors import ExpectationFailedError, PipelineError
from penstock.spark.pipeline.failure import is_lost, pipeline_failure, spark_words

UNRESOLVED = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amnt` cannot be resolved. Did you mean `amount`? \
SQLSTATE: 42703; line 1 pos 0;
'Project ['amnt]
+- Range (0, 10, step=1)
"""
SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'. SQLSTATE: 42601 (line 2, pos 9)

== SQL ==
SELECT * FORM x
---------^^^
"""
IN_A_TASK = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: \
org.x.Y: Traceback (most recent call last):
  File "worker.py", line 3, in main
    f()
ValueError: the first
  The above exception was the direct cause

penstock.errors.RecordTooLargeError: a record of 5 MB is larger than max.request.size

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""

PLAIN_IN_A_TASK = """
  An exception was thrown from the Python worker:
penstock.errors.BadRowsError: 1 row of partition 0 cannot be written: more than max.request.size allows
"""
OTHER_IN_A_TASK = """Job aborted due to stage failure: Task 0 failed 1 times, most recent failure: Lost task 0.0
org.apache.spark.api.python.PythonException: An exception was thrown from the Python worker:
shop.steps.PriceError: no price for 'tea'
org.apache.spark.SparkException: the stage ends
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
AT_THE_DRIVER = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: penstock.errors.KafkaError: the driver \
cannot reach Kafka at h:1 within 8 s: connection refused SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            UNRESOLVED,
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amnt` cannot be resolved. Did you mean `amount`?",
        ),
        (SYNTAX, "[PARSE_SYNTAX_ERROR] Syntax error at or near 'FORM'."),
        (IN_A_TASK, "RecordTooLargeError: a record of 5 MB is larger than max.request.size"),
        (
            PLAIN_IN_A_TASK,
            "BadRowsError: 1 row of partition 0 cannot be written: more than max.request.size allows",
        ),
        (OTHER_IN_A_TASK, "PriceError: no price for 'tea'"),
        (AT_THE_DRIVER, "the driver cannot reach Kafka at h:1 within 8 s: connection refused"),
        (
            "An exception was thrown from the Python worker:\n",
            "An exception was thrown from the Python worker",
        ),
        ("org.apache.spark.SparkException: no room\n\tat x", "no room"),
        ("", "ValueError"),
        ("x" * 1000, "x" * 600 + "..."),
    ],
    ids=[
        "column",
        "syntax",
        "Python in a task",
        "ours in a task",
        "a user's in a task",
        "ours at the driver",
        "no cause",
        "Java",
        "nothing",
        "long",
    ],
)
def test_the_cause_in_one_line(text: str, words: str) -> None:
    assert spark_words(ValueError(text)) == words


def test_words_show_no_mark_of_ours() -> None:
    noise = '[USER_RAISED_EXCEPTION] [penstock expectation] is positive | {"a":-1} [end] SQLSTATE: P0001\n at'
    assert spark_words(RuntimeError(noise)) == (
        "the expectation 'is positive' is not met by a row: {\"a\":-1}"
    )


def test_a_failed_expectation_is_found_in_the_noise() -> None:
    noise = '[USER_RAISED_EXCEPTION] [penstock expectation] is positive | {"a":-1} [end] SQLSTATE: P0001\n at'
    error = pipeline_failure(RuntimeError(noise), "orders")
    assert isinstance(error, ExpectationFailedError)
    assert error.expectation == "is positive"
    assert str(error) == "orders: the expectation 'is positive' is not met by a row: {\"a\":-1}"


def test_a_row_that_cannot_be_shown_is_left_out() -> None:
    error = pipeline_failure(RuntimeError("[penstock expectation] e |  [end]"), "orders")
    assert str(error) == "orders: the expectation 'e' is not met by a row"


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(111, "Connection refused"), RuntimeError("Answer from Java side is empty")],
)
def test_a_driver_that_is_gone_is_told_with_the_way_out(error: Exception) -> None:
    assert is_lost(error)
    text = str(pipeline_failure(error, "orders"))
    assert text.startswith("orders: Spark's driver has ended (")
    assert "run the pipeline again" in text
    assert "penstock run --debug" in text
    assert "spark.log.level" in text


def test_anything_else_is_a_pipeline_error() -> None:
    error = pipeline_failure(RuntimeError("no broker"), "orders")
    assert type(error) is PipelineError
    assert str(error) == "orders: no broker"
