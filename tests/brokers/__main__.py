# SPDX-License-Identifier: Apache-2.0
"""`python -m brokers`, with `tests` on the path: what `make test-brokers` runs."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys

from brokers.cases import CASES
from brokers.frozen import FrozenAtFirstContact
from brokers.matrix import KFAKE, run_kfake, run_release
from brokers.memory import MEMORY
from brokers.mixed import MixedFormats
from brokers.readers import ReadingFailed
from brokers.rolling import UPGRADES
from brokers.servers import ROOT, NoServer
from brokers.table import Cell, report
from penstock.devbroker import RELEASES, DevBrokerError
from penstock.errors import KafkaError

# What needs a cluster of its own.
SCENARIOS = (*UPGRADES, MixedFormats(), FrozenAtFirstContact(), *MEMORY)
LOG = (
    ROOT / "build" / "brokers" / "producer.log"
)  # what the producers log: retries, and what a release cannot do


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """Run the matrix, print its table, and say by the exit code whether every cell is as it must be."""
    parser = argparse.ArgumentParser(prog="brokers", description=__doc__)
    servers = (*RELEASES, KFAKE)
    parser.add_argument(
        "servers", nargs="*", metavar="RELEASE", help=f"of {', '.join(servers)}; all by default"
    )
    parser.add_argument("--case", action="append", default=[], help="only cases whose names have this word")
    options = parser.parse_args(argv)

    def chosen(name: str) -> bool:
        return not options.case or any(word in name for word in options.case)

    cases = [case for case in CASES if chosen(case.name)]
    names = [case.name for case in CASES] + [scenario.name for scenario in SCENARIOS]
    if not any(chosen(name) for name in names):
        parser.error(f"no case has such a name; there are: {', '.join(names)}")
    if unknown := set(options.servers) - set(servers):
        parser.error(f"no such release: {', '.join(unknown)}; there are: {', '.join(servers)}")
    LOG.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=LOG, filemode="w", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    cells: list[Cell] = []
    for server in (options.servers or servers) if cases else ():
        try:
            cells += run_kfake(cases, say) if server == KFAKE else run_release(server, cases, say)
        except (DevBrokerError, NoServer, subprocess.TimeoutExpired) as error:
            cells += [Cell(case.name, server, "FAILED", [f"no server: {error}"]) for case in cases]
    for scenario in SCENARIOS:
        if (not options.servers or scenario.old in options.servers) and chosen(scenario.name):
            try:
                cells.append(scenario.run(say))
            except (DevBrokerError, ReadingFailed, KafkaError, subprocess.SubprocessError) as error:
                cells.append(Cell(scenario.name, scenario.old, "FAILED", [str(error)]))
    say("")
    say(report(cells))
    return 1 if any(cell.failed for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
