# SPDX-License-Identifier: Apache-2.0
"""`penstock recover`: how exactly-once sinks stand, and finishing what their drivers decided and did not finish."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock._counted import counted
from penstock._escaping import escaped
from penstock._redaction import redacted, shown_option
from penstock.cli.left_over import (
    end_all,
    left_over_advice,
    left_over_json,
    left_over_lines,
    title,
    what_would_be_ended,
)
from penstock.cli.options import CommandError, UsageError, add_producer_arguments, producer_config
from penstock.cli.reach import check_topics, patience_of
from penstock.config.secrets import given_in_the_clear, is_secret_option
from penstock.control import ControlClient
from penstock.errors import DecidedDataLostError, KafkaError, TransactionUnknownError
from penstock.sink import (
    DEFAULT_LOG_TOPIC,
    CommitReport,
    DecisionState,
    LogState,
    SinkState,
    inspect_log,
    roll_forward,
    sink_key,
)

if TYPE_CHECKING:
    from penstock.cli.options import SubParsers

_KEY_DIGITS = 16
_MAX_STRAYS = 20
_DESCRIPTION = """\
Show the exactly-once sinks of a cluster, or finish what the driver of one has decided and not finished.

Without a sink, all of them are shown and nothing is changed. With --sink-id, --sink-key or --all, decided batches are
rolled forward: their transactions are committed, so that readers see the whole batch. That is safe at any time and from
anywhere, also while the sink's own driver runs or another `penstock recover` does the same.

The exit code is 0 when no decided batch is left unfinished, and 1 when one is, when the log of a sink
cannot be read, or when something went wrong. It is 2 when the command line, or an option of the client, is wrong.
"""
_EPILOG = """\
examples:
  penstock recover -b kafka:9092                                  how all sinks stand
  penstock recover -b kafka:9092 --sink-id checkpoints/orders     finish that streaming query's batch
  penstock recover -b kafka:9092 --sink-id batch --run-id orders-2026-11-14
  penstock recover -b kafka:9092 --all --json                     for scripts
  penstock recover -b kafka:9092 --abort-left-over                what dead drivers have left open; --yes ends it
"""


def add_parser(subparsers: SubParsers) -> None:
    """Add the `recover` command."""
    parser = subparsers.add_parser(
        "recover",
        help="show exactly-once sinks, and finish what their drivers decided",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--sink-id",
        metavar="NAME",
        help="the sink's name: the option sinkId, else the checkpoint location; of a batch job `batch`, of a "
        "batch pipeline its name",
    )
    which.add_argument(
        "--sink-key", metavar="KEY", type=_key, help="the sink's 16 hex digits, as they are shown here"
    )
    which.add_argument("--all", action="store_true", help="every sink in the decision topic")
    parser.add_argument("--run-id", metavar="RUN", help="with --sink-id: the run of a batch job")
    parser.add_argument("--show", action="store_true", help="only show how it stands; change nothing")
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="mark a batch as done although some of its transactions were aborted, so that the sink can start again; "
        "what is lost is shown",
    )
    parser.add_argument(
        "--abort-left-over",
        action="store_true",
        help="show the open transactions in no decision that could be ended now: those of drivers that were replaced "
        "or have ended; of a named sink also where that cannot be told from here. With --yes they are ended",
    )
    parser.add_argument("--yes", action="store_true", help="with --abort-left-over: end what it shows")
    parser.add_argument(
        "--decision-topic",
        metavar="TOPIC",
        default=DEFAULT_LOG_TOPIC,
        help=f"where decisions are written (default: {DEFAULT_LOG_TOPIC})",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each sink")
    add_producer_arguments(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Do what the command line asks. Return the exit code: 1 when a decided batch stays unfinished."""
    key = _chosen_key(args)
    config = producer_config(args)
    with ControlClient(config) as client:
        check_topics(client, config["bootstrap.servers"], patience_of(config))
        found = inspect_log(client, key, log_topic=args.decision_topic)
        if not found.sinks and args.sink_id is not None and args.sink_id.endswith("/"):
            # The slash at the end of a checkpoint location is no part of the sink's name.
            key = sink_key(args.sink_id.rstrip("/") or "/", args.run_id)
            found = inspect_log(client, key, log_topic=args.decision_topic)
        if key is not None and not found.sinks:
            raise CommandError(_not_found(args, key))
        changes = not args.show and not args.abort_left_over and (key is not None or args.all)
        failed: dict[str, KafkaError] = {}
        if args.abort_left_over and args.yes:
            failed = end_all(client, found.sinks, args.decision_topic, _say, named=key is not None)
            found = inspect_log(client, key, log_topic=args.decision_topic)
        if changes:
            failed = _roll_all(client, found.sinks, args)
            found = inspect_log(client, key, log_topic=args.decision_topic)
    states = found.sinks
    if args.json:
        for state in states:
            print(json.dumps(as_json(state)))
    else:
        nothing = f"No sink has written to {args.decision_topic} yet: there is nothing to do."
        print(describe(states, _command(args), failed) if states else nothing)
    if args.abort_left_over and not args.yes:
        again = f"{_command(args)} {'' if key is None else f'--sink-key {key} '}--abort-left-over"
        _say_lines(what_would_be_ended(states, named=key is not None, command=again))
    _say_strays(found, args.decision_topic)
    for error in failed.values():
        _say(f"penstock: {error}")
    if not changes and any(state.needs_roll_forward for state in states):
        _say(f"penstock: to finish what is decided, of all sinks: {_command(args)} --all")
    return 1 if failed or any(state.needs_roll_forward or state.unreadable for state in states) else 0


def _chosen_key(args: argparse.Namespace) -> str | None:
    if args.yes and not args.abort_left_over:
        raise UsageError("--yes is for --abort-left-over")
    if args.abort_left_over and (args.show or args.accept_loss):
        raise UsageError("--abort-left-over does not go with --show or --accept-loss")
    if args.run_id is not None and args.sink_id is None:
        raise UsageError(
            "--run-id says which run of a sink is meant: give --sink-id as well (of a batch job: batch; of a batch "
            "pipeline: its name)"
        )
    if args.accept_loss and args.sink_id is None and args.sink_key is None:
        raise UsageError("--accept-loss is for one sink at a time: name it with --sink-id or --sink-key")
    if args.sink_id is not None:
        return sink_key(args.sink_id, args.run_id)
    key: str | None = args.sink_key
    return key


def _not_found(args: argparse.Namespace, key: str) -> str:
    if args.sink_id is None:
        what = f"with the key {key}"
    elif args.run_id is None:
        what = f"called {args.sink_id!r}"
    else:
        what = f"called {args.sink_id!r} with the run {args.run_id!r}"
    return (
        f"no sink {what} has written to {args.decision_topic}; `penstock recover` without a sink lists those that "
        "have"
    )


def _roll_all(
    client: ControlClient, states: Iterable[SinkState], args: argparse.Namespace
) -> dict[str, KafkaError]:
    """Finish what is decided; one sink that cannot be finished does not hold up the others."""
    failed: dict[str, KafkaError] = {}
    for state in states:
        if not state.needs_roll_forward:
            continue
        _say(f"rolling forward {title(state)} ...")
        try:
            report = roll_forward(
                client, state.sink_key, log_topic=args.decision_topic, accept_loss=args.accept_loss
            )
        except KafkaError as error:
            failed[state.sink_key] = error
        else:
            _say(_rolled(report))
    return failed


def _say_strays(found: LogState, topic: str) -> None:
    """Name what is in the decision topic and does not count: somebody else may write there."""
    for stray in found.strays[:_MAX_STRAYS]:
        sink = "" if stray.sink_key is None else f" (sink key {stray.sink_key})"
        _say(f"penstock: {topic}-{stray.partition}, offset {stray.offset}{sink}: {stray.reason}")
    if found.strays:
        more = found.stray_count - len(found.strays[:_MAX_STRAYS])
        and_more = f", {more} more of them," if more else ""
        _say(
            f"penstock: these records{and_more} do not count. Penstock has not written them: find out who may write to "
            f"{topic}"
        )


def _rolled(report: CommitReport) -> str:
    return f"  {counted(report.handles, 'transaction')} with {counted(report.rows, 'row')} committed"


# ---- in words


def describe(
    states: Sequence[SinkState],
    command: str = "penstock recover",
    failed: Mapping[str, KafkaError] = MappingProxyType({}),
) -> str:
    """How the sinks stand, and what is to be done about it, a paragraph for each; safe to be printed.

    What the log and the brokers say may have been written by anybody who may write to the decision topic.

    Args:
        states: of the sinks.
        command: how the user calls this one.
        failed: by the keys of sinks that could not be rolled forward: why.
    """
    return "\n\n".join(
        "\n".join(map(escaped, [*_lines(state), *_advice(state, command, failed.get(state.sink_key))]))
        for state in states
    )


def _command(args: argparse.Namespace) -> str:
    """The command line that asks the same cluster again, without secrets: it is printed, and ends in logs."""
    words = ["penstock", "recover"]
    if args.config is not None:
        words += ["--config", str(args.config)]
    for name, value in args.producer_options:
        words += ["-X", f"{name}={_printed(name, value)}"]
    if args.bootstrap_server is not None:
        words += ["-b", args.bootstrap_server]
    if args.decision_topic != DEFAULT_LOG_TOPIC:
        words += ["--decision-topic", args.decision_topic]
    return shlex.join(words)


def _printed(name: str, value: str) -> str:
    """An option's value as it may be printed; references to secrets stay, so that the command can be used again."""
    if is_secret_option(name) and not given_in_the_clear({name: value}):
        return redacted(value)
    return shown_option(name, value)


def _advice(state: SinkState, command: str, failure: KafkaError | None) -> list[str]:
    """What the user has to do; mostly nothing."""
    if state.unreadable is not None:
        return [
            "  to do        restore the decision topic; or find out what was written, and go on with another sinkId"
        ]
    if state.needs_roll_forward and _is_for_good(failure):
        return _advice_after_loss(f"{command} --sink-key {state.sink_key} --accept-loss", failure)
    if state.needs_roll_forward:
        return [
            f"  to do        roll forward, soon: {command} --sink-key {state.sink_key}",
            "               (the sink's next start does it as well; transactions that time out before are lost)",
        ]
    if state.deciding:
        return [
            "  to do        nothing now; look again in a minute: what is not decided is aborted by itself, by the",
            "               sink's next start or after the transaction's time-out",
        ]
    if state.left_over:
        return left_over_advice(state, command)
    return ["  to do        nothing"]


def _is_for_good(failure: KafkaError | None) -> bool:
    """Whether the same command would fail again, and the sink's next start as well."""
    return isinstance(failure, DecidedDataLostError) or (
        failure is not None and isinstance(failure.__cause__, TransactionUnknownError)
    )


def _advice_after_loss(command: str, failure: KafkaError | None) -> list[str]:
    if isinstance(failure, DecidedDataLostError):
        return [
            f"  to do        write the lost records again from the source, then: {command}",
            "               (or start the job again with onLost=repair: if it replays the batch with the same rows,",
            "               what is lost is written again; until then each of its starts fails)",
        ]
    return [
        f"  to do        look into the topics, write again what is missing, then: {command}",
        "               (until then each start of the sink fails)",
    ]


def _lines(state: SinkState) -> list[str]:
    lines = [title(state)]
    if state.unreadable is not None:
        return [*lines, f"  UNREADABLE   {state.unreadable}"]
    if state.owner is None:
        lines.append("  owner        none")
    else:
        lines.append(f"  owner        {state.owner}, generation {state.generation}")
    if state.decision is None:
        lines.append("  decisions    none")
    else:
        lines += _decision_lines(state.decision)
    others = {
        query: batch
        for query, batch in state.last_decided.items()
        if state.decision is None or query != state.decision.query_id
    }
    lines += [f"  earlier      batch {batch} of query {query}" for query, batch in sorted(others.items())]
    if state.deciding:
        lines.append(
            "  deciding     a decision is being written now, or its driver died over it and it will be aborted"
        )
    return lines + left_over_lines(state)


def _decision_lines(decision: DecisionState) -> list[str]:
    what = f"batch {decision.batch_id} of query {decision.query_id}, {counted(decision.rows, 'row')}"
    if decision.topic is not None:
        what += f" to {decision.topic}"
    if decision.done:
        return [f"  last         {what}: done"]
    open_ones = sum(handle.is_open for handle in decision.handles)
    lines = [
        f"  last         {what}: DECIDED, NOT FINISHED",
        f"               {open_ones} of {counted(len(decision.handles), 'transaction')} still open",
    ]
    for handle in decision.handles:
        name = handle.handle.transaction.transactional_id
        lines.append(f"               {name}: {handle.state}, {counted(handle.handle.rows, 'row')}")
    return lines


def as_json(state: SinkState) -> Mapping[str, Any]:
    """How a sink stands, for scripts."""
    decision = state.decision
    return {
        "sinkKey": state.sink_key,
        "sinkId": state.sink_id,
        "runId": state.run_id,
        "owner": None if state.owner is None else str(state.owner),
        "generation": state.generation,
        "unreadable": state.unreadable,
        "needsRollForward": state.needs_roll_forward,
        "deciding": state.deciding,
        "lastDecided": dict(state.last_decided),
        "decision": None
        if decision is None
        else {
            "queryId": decision.query_id,
            "batchId": decision.batch_id,
            "topic": decision.topic,
            "rows": decision.rows,
            "done": decision.done,
            "transactions": [
                {
                    "transactionalId": handle.handle.transaction.transactional_id,
                    "rows": handle.handle.rows,
                    "state": handle.state,
                    "open": handle.is_open,
                }
                for handle in decision.handles
            ],
        },
        "leftOver": [left.transactional_id for left in state.left_over],
        "openTransactions": left_over_json(state),
    }


def _key(text: str) -> str:
    key = text.lower()
    if len(key) != _KEY_DIGITS or not set(key) <= set("0123456789abcdef"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a key of 16 hex digits; a name is given with --sink-id"
        )
    return key


def _say_lines(text: str) -> None:
    for line in text.splitlines():
        _say(f"penstock: {line}")


def _say(message: str) -> None:
    """Tell the user something. Parts of the text may come from anybody, so it is escaped."""
    print(escaped(message), file=sys.stderr, flush=True)
