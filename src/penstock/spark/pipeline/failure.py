# SPDX-License-Identifier: Apache-2.0
"""What Spark says when something fails, in one line: the cause, without stacks, positions and internal codes."""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock._redaction import redacted
from penstock.errors import ExpectationFailedError, PipelineError

# Stands in the error that a row raises when it must not be there; found again in what Spark makes of it.
EXPECTATION_MARK = "[penstock expectation]"
# Behind a row that was cut; the number is that of characters at its end that are not to be shown.
CUT_MARK = " [cut {}]"
LONGEST_ROW = 200  # characters of a row that are shown

_NOISE = re.compile(
    r"""
    \s*SQLSTATE:\s*\w+            # a code behind the sentence
    | ;?\s*\(?line\ \d+,?\ pos\ \d+\)?;?  # a place in a text that the user did not write in this form
    | ;?\s*==.*$
    """,
    re.VERBOSE,
)
_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z][\w$]*(?:Error|Exception): ")
_EXPECTATION = re.compile(re.escape(EXPECTATION_MARK) + r" (.*?) \| (.*?) \[end\]", re.DOTALL)
_CUT = re.compile(r" \[cut (\d+)\]$")
_PYTHON_ERROR = re.compile(
    r"^\s*((?!org\.|java\.|py4j\.)(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)): (.+)$", re.MULTILINE
)
# Ours say by themselves what happened, wherever Spark puts them.
_OUR_ERROR = re.compile(r"^(.*?)\bpenstock\.errors\.(\w+): (.+)$", re.MULTILINE)
_CODE = re.compile(r"\s*SQLSTATE:\s*\w+\s*$")
_LONGEST = 600  # characters of a cause that are shown


def spark_words(error: BaseException, hide: Callable[[str], str] = redacted) -> str:
    """The cause in one line.

    Args:
        error: of Spark.
        hide: takes secrets out of a text. It sees the whole text: what is cut off or joined is not recognised any more.
    """
    broken = _try_expectation(str(error), hide)
    if broken is not None:
        return broken[1]
    text = hide(str(error)).strip()
    cause = _try_python_cause(text)
    if cause is not None:
        return _shortened(cause)
    lines = [line.strip(": \t") for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(
        "An error occurred while calling "
    ):  # what Java raised comes next
        del lines[0]
    words = _CLASS.sub("", lines[0]) if lines else ""
    words = _NOISE.sub("", words).strip().rstrip(";")
    return _shortened(words) or type(error).__name__


def _try_python_cause(text: str) -> str | None:
    """What Python raised, in a worker or for the driver; the last one is what the others were caused by, or became."""
    ours = _OUR_ERROR.findall(text)
    if ours:
        before, name, words = ours[-1]
        words = _CODE.sub("", words)
        return words if before.strip() else f"{name}: {words}"
    if "Traceback (most recent call last)" not in text and "Python worker" not in text:
        return None
    raised = _PYTHON_ERROR.findall(text)
    if not raised:
        return None
    name, words = raised[-1]
    return f"{name.rpartition('.')[2]}: {words}"


def _try_expectation(text: str, hide: Callable[[str], str]) -> tuple[str, str] | None:
    """The name of the expectation that a row did not meet, and a sentence about it; None where it is not that."""
    found = _EXPECTATION.search(text)
    if found is None:
        return None
    expectation, row = found[1], _shown_row(found[2], hide)
    return expectation, f"the expectation {hide(expectation)!r} is not met by a row" + (
        f": {row}" if row else ""
    )


def _shown_row(row: str, hide: Callable[[str], str]) -> str:
    cut = _CUT.search(row)
    if cut is None:
        return hide(row)
    whole = hide(row[: cut.start()])
    return whole[: max(0, len(whole) - int(cut[1]))][:LONGEST_ROW]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def is_lost(error: BaseException) -> bool:
    """Whether Spark itself is gone: nothing more can be asked of it."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return (
        isinstance(error, OSError)
        or "Py4JNetworkError" in names
        or "Answer from Java side is empty" in str(error)
    )


def pipeline_failure(error: BaseException, name: str, hide: Callable[[str], str] = redacted) -> PipelineError:
    """The error that the user of a pipeline gets for one of Spark; `hide` takes secrets out of a text."""
    broken = _try_expectation(str(error), hide)
    if broken is not None:
        expectation, words = broken
        return ExpectationFailedError(f"{name}: {words}", expectation)
    if is_lost(error):
        return PipelineError(
            f"{name}: Spark's driver has ended ({spark_words(error, hide)}). What was committed is in the topic; run "
            "the pipeline again, and it goes on from there. Why it ended may stand in Spark's own log: `penstock run "
            "--debug`, or spark.log.level in [spark.settings], shows it"
        )
    return PipelineError(f"{name}: {spark_words(error, hide)}")
