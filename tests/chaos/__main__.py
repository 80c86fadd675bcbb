# SPDX-License-Identifier: Apache-2.0
"""`python -m chaos`, with `tests` on the path: what `make chaos` runs."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from chaos.run import ChaosPlan, run_chaos


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _haste(text: str) -> float:
    haste = float(text)
    if not 0.1 <= haste <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 10")
    return haste


def main(argv: list[str] | None = None) -> int:
    """Run, print the report, and say by the exit code whether all promises were kept."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are made")
    parser.add_argument("--seed", type=int, help="decides the faults; one is drawn when it is not given")
    parser.add_argument(
        "--protocol", choices=("v1", "v2", "both"), default="both", help="of the transactions"
    )
    parser.add_argument(
        "--rate", type=float, default=10_500.0, help="records per second, all processes together"
    )
    parser.add_argument(
        "--haste", type=_haste, default=1.0, help="how much less rest there is between faults; 3 finds more"
    )
    parser.add_argument(
        "--security",
        choices=("PLAINTEXT", "SASL_SSL"),
        default="PLAINTEXT",
        help="SASL_SSL: by TLS and SCRAM, with sessions of two seconds",
    )
    parser.add_argument("--min-faults", type=int, default=0, help="fail when fewer faults counted")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    say(f"seed {seed}, {options.minutes:g} minutes, transactions {options.protocol}, {options.security}")
    secured = options.security != "PLAINTEXT"
    plan = ChaosPlan(
        options.minutes * 60, seed, options.protocol, options.rate, haste=options.haste, secured=secured
    )
    report = run_chaos(plan, say)
    say(report.text())
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_dict(), indent=2) + "\n", encoding="ascii")
    if report.counted < options.min_faults:
        say(f"only {report.counted} faults counted, {options.min_faults} are wanted")
        return 1
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
