# SPDX-License-Identifier: Apache-2.0
"""The parser of the command line: an error is one line, which names the help that has the rest.

It leans on two inner methods of argparse. A Python without them has the same rules, and other words for an error.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from penstock._escaping import escaped
from penstock._redaction import redacted

EXIT_USAGE = 2


class CommandParser(argparse.ArgumentParser):
    """Takes options before, between and behind the other arguments: `produce TOPIC --format json FILE`."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class does, for arguments in any order; it calls this method again, and then itself."""
        if self._within:
            return super().parse_known_args(args, namespace)
        if self._subparsers is not None:
            self._check_before_command(sys.argv[1:] if args is None else list(args))
            parsed, unknown = super().parse_known_args(args, namespace)
        else:
            self._within = True
            try:
                parsed, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._within = False
        if unknown:
            # Here and not by the parser above, which does not know this command's options.
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Tell a wrong command line in one line, without the usage and its secrets, and end with the exit code 2."""
        self.exit(
            EXIT_USAGE, f"{self.prog}: error: {escaped(redacted(message))} (see '{self.prog} --help')\n"
        )

    def _check_before_command(self, given: Sequence[str]) -> None:
        """Refuse an unknown option before the command's name: its value would be taken for that name."""
        for number, argument in enumerate(given, 1):
            if not argument.startswith("-") or argument in ("-", "--"):
                return
            name = argument.partition("=")[0]
            if name in self._option_string_actions or self._get_option_tuples(name):
                continue
            meant = self._meant([argument])
            if not meant and not all(other.startswith("-") for other in given[number:]):
                meant = "; write the options of a command behind its name"
            self.error(f"unrecognized arguments: {argument}{meant}")

    def _meant(self, unknown: Iterable[str]) -> str:
        """The option that a misspelled one is most like, as a question; empty when there is none."""
        names = [argument.partition("=")[0] for argument in unknown if argument.startswith("--")]
        for name in names:
            if close := difflib.get_close_matches(name, self._option_string_actions, n=1):
                return f"; did you mean {close[0]}?"
        return ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a command or a value that is none of those there are, with the one that was meant."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        close = difflib.get_close_matches(str(value), choices, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(choices)}"
        if action.nargs == argparse.PARSER:
            raise argparse.ArgumentError(None, f"unknown command {value!r}{meant}")
        raise argparse.ArgumentError(action, f"{value!r} is not known{meant}")

    def _get_option_tuples(self, option_string: str) -> Any:
        """The options that an abbreviation can mean; two names of one option are one."""
        found = super()._get_option_tuples(option_string)
        return found[:1] if len({id(option[0]) for option in found}) == 1 else found
