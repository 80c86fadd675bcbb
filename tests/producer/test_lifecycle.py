# SPDX-License-Identifier: Apache-2.0
"""The edges of a process: Ctrl-C, fork, exit, a producer that is forgotten. Each in a program of its own.

The programs connect to a broker of the test's own process, on the loopback interface.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fix_network import VirtualClock
from producer.fakes_sender import LoopbackBroker

import penstock
from penstock import Interceptor, Producer
from penstock._ticket import Ticket
from penstock.errors import IllegalStateError
from penstock.producer import lifecycle
from penstock.producer.assembly import ProducerParts
from penstock.producer.io.thread import IOThread

SECONDS = 200.0  # for a program that takes one on an idle machine
PRELUDE = """
import os, signal, sys, threading, time
from penstock import Producer, errors

ADDRESS = sys.argv[1]

def make(**options):
    return Producer(**({"bootstrap_servers": ADDRESS, "linger_ms": 0, "enable_idempotence": False} | options))
"""

pytestmark = pytest.mark.slow

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture
def broker() -> Iterator[LoopbackBroker]:
    with LoopbackBroker(t=1) as running:
        yield running


def run(
    broker: LoopbackBroker, program: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. Its warnings are errors."""
    with start(broker, program, options) as process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"the program did not end\n{out}\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(broker: LoopbackBroker, program: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    source = str(Path(penstock.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-W", "error", *options, "-c", PRELUDE + textwrap.dedent(program), broker.address],
        env=os.environ | {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# ------------------------------------------------------------------------------------------------- all well


def test_a_program_that_sends_and_closes_prints_nothing(broker):
    done = run(
        broker,
        """
        with make() as producer:
            producer.send("t", b"v").result(100)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert broker.values() == [b"v"]


def test_development_mode_has_no_complaints(broker):
    done = run(
        broker,
        """
        with make() as producer:
            producer.send("t", b"v").result(100)
        del producer
        """,
        options=("-X", "dev"),
    )
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------------------------------ exit


def test_a_program_that_forgets_to_close_delivers_at_exit(broker):
    done = run(
        broker,
        """
        producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
        producer.send("t", b"v")
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert broker.values() == [b"v"]


def test_a_program_that_ends_by_an_error_delivers_at_exit(broker):
    done = run(
        broker,
        """
        producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
        producer.send("t", b"v")
        sys.exit(3)
        """,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert broker.values() == [b"v"]


@pytest.mark.parametrize(("count", "told"), [(3, "3 records were given up"), (1, "1 record was given up")])
def test_what_cannot_be_delivered_at_exit_is_counted_in_a_warning(broker, count, told):
    broker.hold = True
    done = run(
        broker,
        """
        from penstock.producer import lifecycle
        lifecycle.EXIT_FLUSH_SECONDS = 0.2
        lifecycle.FORCED_END_SECONDS = 60
        producer = make(client_id="me")
        for _ in range(COUNT):
            producer.send("t", b"v")
        """.replace("COUNT", str(count)),
    )
    assert done.returncode == 0
    assert re.search(
        rf"Producer 'me' for \S+ was not closed before the program ended, and {told}", done.stderr
    )
    assert ": closed>" not in done.stderr, "it closed itself, which is not what the user is told"
    assert "the producer was closed and gave up" not in done.stderr, "they are logged once"
    assert "did not end" not in done.stderr, "the I/O thread is told to give up, too"
    assert "Traceback" not in done.stderr


def test_an_idle_producer_does_not_delay_the_exit(broker):
    done = run(
        broker,
        """
        from penstock.producer import lifecycle
        lifecycle.EXIT_FLUSH_SECONDS = lifecycle.FORCED_END_SECONDS = 1000
        producer = make()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_callback_that_blocks_at_exit_is_named(broker):
    done = run(
        broker,
        """
        from penstock.producer import lifecycle
        lifecycle.EXIT_FLUSH_SECONDS = lifecycle.FORCED_END_SECONDS = 0.2
        entered = threading.Event()
        def block(metadata, error):
            entered.set()
            threading.Event().wait()
        producer = make(client_id="me")
        producer.send("t", b"v", on_delivery=block)
        entered.wait()
        """,
    )
    assert done.returncode == 0
    assert "the I/O thread of <Producer 'me' for " in done.stderr
    assert "did not end: it is still in block (" in done.stderr


@pytest.mark.parametrize("end", ["", "producer.close()"])
def test_plugins_are_closed_once_at_exit_if_not_before(broker, end):
    done = run(
        broker,
        f"""
        from penstock import Interceptor
        class Closes(Interceptor):
            def close(self):
                print("closed")
        producer = make(interceptors=[Closes()])
        producer.send("t", b"v")
        {end}
        """,
    )
    assert lines(done) == ["closed"]
    assert done.stderr == ""


def test_a_record_that_a_finalizer_sent_before_the_exit_is_accepted(broker):
    """It waits for the partitions of its topic, which the cluster tells only when the program has begun to end."""
    broker.telling.clear()
    with start(
        broker,
        """
        import atexit
        from penstock.producer import lifecycle
        lifecycle._EXIT_APPEND_SECONDS = lifecycle.EXIT_FLUSH_SECONDS = 100
        producer = make()
        with producer._parts.accumulator._lock:  # as if it had been called in there
            producer.send("t", b"v")
        atexit.register(print, "ends", flush=True)  # runs before what the package has registered
        """,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ends\n"
        broker.telling.set()
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    assert broker.values() == [b"v"]


# ------------------------------------------------------------------------------------------------- forgotten


def test_a_producer_that_is_garbage_delivers_and_its_thread_ends(broker):
    done = run(
        broker,
        """
        import gc
        producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
        delivery = producer.send("t", b"v")
        thread = producer._core.thread
        del producer
        gc.collect()
        thread.join(100)
        print(thread.is_alive(), delivery.exception(0))
        """,
    )
    assert lines(done) == ["False None"]
    assert broker.values() == [b"v"]
    assert "ResourceWarning" in done.stderr
    assert "was forgotten without close(): 1 record has no outcome yet" in done.stderr


def test_a_forgotten_producer_is_waited_for_at_exit(broker):
    done = run(
        broker,
        """
        producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
        producer.send("t", b"v")
        del producer
        """,
        options=("-W", "ignore::ResourceWarning"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert broker.values() == [b"v"]


def test_a_forgotten_producer_that_is_given_up_at_exit_says_how_many_records_that_concerns(broker):
    broker.hold = True
    done = run(
        broker,
        """
        from penstock.producer import lifecycle
        lifecycle.EXIT_FLUSH_SECONDS = 0.2
        producer = make(client_id="me")
        for _ in range(3):
            producer.send("t", b"v")
        del producer
        """,
        options=("-W", "ignore::ResourceWarning"),
    )
    assert done.returncode == 0
    assert "penstock-producer-me was given up with 3 records not delivered" in done.stderr


def test_failures_that_nobody_looked_at_before_the_program_ended_are_told(broker):
    broker.error_code = 87
    done = run(
        broker,
        """
        producer = make()
        kept = []
        for _ in range(3):  # a batch each
            kept.append(producer.send("t", b"v"))
            producer.flush()
        kept[0].exception(0)
        producer.close()
        """,
    )
    assert done.returncode == 0
    assert "2 records for topic 't' failed, and the program did not ask" in done.stderr
    assert done.stderr.count("did not ask for the outcome") == 1


def test_a_producer_in_a_cycle_can_be_collected_on_any_thread(broker):
    """The collector may run on the I/O thread itself, in the middle of a locked section."""
    done = run(
        broker,
        """
        import gc
        class Holder: pass
        holder = Holder()
        holder.itself = holder
        holder.producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
        holder.producer.send("t", b"v")
        thread, accumulator = holder.producer._core.thread, holder.producer._parts.accumulator
        del holder
        with accumulator._lock, accumulator.pool._lock:
            gc.collect()  # as if it had been triggered in there
        thread.join(100)
        print(thread.is_alive())
        """,
    )
    assert lines(done) == ["False"]
    assert broker.values() == [b"v"]


# -------------------------------------------------------------------------------------------------------- fork


@needs_fork
def test_every_call_in_the_child_is_refused_and_the_parent_goes_on(broker):
    done = run(
        broker,
        """
        producer = make()
        producer.send("t", b"before").result(100)
        child = os.fork()
        if child == 0:
            calls = {
                "send": lambda: producer.send("t", b"child"),
                "send unknown": lambda: producer.send("unknown", b"child"),
                "flush": producer.flush,
                "partitions_for": lambda: producer.partitions_for("t"),
                "metrics": producer.metrics,
            }
            for name, call in calls.items():
                try:
                    call()
                except errors.ForkedProducerError as error:
                    assert "before a fork" in str(error)
                else:
                    print("not refused:", name, flush=True)
            producer.close()
            print(repr(producer).endswith("forked>"), flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        print(producer.send("t", b"after").result(100).offset)
        producer.close()
        """,
    )
    assert lines(done) == ["True", "0", "1"]
    assert done.stderr == ""
    assert broker.values() == [b"before", b"after"]


@needs_fork
def test_a_delivery_can_be_asked_in_the_child_if_its_outcome_was_known(broker):
    done = run(
        broker,
        """
        producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
        known, pending = producer.send("t", b"a"), None
        producer.flush(100)
        pending = producer.send("t", b"b")
        child = os.fork()
        if child == 0:
            print(known.result().offset)
            for call in (pending.result, pending.exception):
                try:
                    call()
                except errors.ForkedProducerError as error:
                    print("refused", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        producer.close()
        print(pending.result(0).offset)
        """,
    )
    assert lines(done) == ["0", "refused", "refused", "1"]


@needs_fork
def test_a_child_that_ends_with_records_of_the_parent_pending_is_silent_and_quick(broker):
    broker.hold = True
    done = run(
        broker,
        """
        producer = make(linger_ms=60_000, delivery_timeout_ms=120_000)
        delivery = producer.send("t", b"v")
        child = os.fork()
        if child == 0:
            del producer
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), delivery.done(), flush=True)
        producer.close(0)
        """,
    )
    assert lines(done) == ["0 False"]
    (line,) = done.stderr.splitlines()  # of the parent
    assert "gave up 1 record for topic 't':" in line


@needs_fork
def test_a_new_producer_works_in_the_child(broker):
    done = run(
        broker,
        """
        producer = make()
        producer.send("t", b"parent").result(100)
        child = os.fork()
        if child == 0:
            with make() as mine:
                mine.send("t", b"child").result(100)
            sys.exit(0)
        os.waitpid(child, 0)
        producer.close()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert broker.values() == [b"parent", b"child"]


@needs_fork
def test_a_fork_while_other_threads_send_leaves_nobody_hanging(broker):
    done = run(
        broker,
        """
        producer = make(buffer_memory=1_000_000)
        producer.send("t", b"v").result(100)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                producer.send("t", b"v")
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                try:
                    producer.send("t", b"child")
                except errors.ForkedProducerError:
                    producer.close()
                    os._exit(7)
                os._exit(1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        for thread in threads:
            thread.join()
        producer.close()
        print(codes)
        """,
    )
    assert lines(done) == ["[7, 7, 7, 7, 7]"]


# ------------------------------------------------------------------------------------------------------ Ctrl-C

INTERRUPT = """
was_interrupted = False

def interrupt(_, frame):  # what Ctrl-C does, by an alarm clock: once, in the middle of a wait
    global was_interrupted
    while frame is not None and not frame.f_code.co_filename.endswith("_locks.py"):
        frame = frame.f_back
    if frame is not None and not was_interrupted:
        was_interrupted = True
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)

def interrupted(call):
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.1)
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted")
    else:
        print("not interrupted")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""


def run_interrupted(broker: LoopbackBroker, program: str) -> list[str]:
    return lines(run(broker, INTERRUPT + textwrap.dedent(program)))


def test_ctrl_c_interrupts_a_send_that_waits_for_metadata(broker):
    out = run_interrupted(
        broker,
        """
        producer = make(max_block_ms=1_000_000)
        interrupted(lambda: producer.send("unknown", b"v"))
        print(producer.send("t", b"v").result(100).offset)
        producer.close()
        """,
    )
    assert out == ["interrupted", "0"]


def test_ctrl_c_interrupts_a_send_that_waits_for_memory(broker):
    broker.hold = True
    out = run_interrupted(
        broker,
        """
        producer = make(max_block_ms=1_000_000, buffer_memory=1000, batch_size=1000)
        producer.send("t", b"v" * 900)
        interrupted(lambda: producer.send("t", b"v" * 900))
        print(producer.metrics()["producer-metrics"]["waiting-threads"])
        producer.close(0)
        metrics = producer.metrics()["producer-metrics"]
        print(metrics["buffer-available-bytes"])
        """,
    )
    assert out == ["interrupted", "0", "1000"]


@pytest.mark.parametrize(
    "call", ["producer.flush()", "producer.flush(1000)", "delivery.result()", "delivery.exception(1000)"]
)
def test_ctrl_c_interrupts_waiting_for_records(broker, call):
    broker.hold = True
    out = run_interrupted(
        broker,
        f"""
        producer = make()
        delivery = producer.send("t", b"v")
        interrupted(lambda: {call})
        print(delivery.done())
        producer.close(0)
        """,
    )
    assert out == ["interrupted", "False"]


def test_ctrl_c_interrupts_close_and_what_is_left_fails(broker):
    """Requirement 16."""
    broker.hold = True
    out = run_interrupted(
        broker,
        """
        producer = make()
        delivery = producer.send("t", b"v")
        interrupted(producer.close)
        producer._core.thread.join(100)  # it has done its work, and may not have ended yet
        print(type(delivery.exception(0)).__name__, producer._core.thread.is_alive())
        """,
    )
    assert out == ["interrupted", "ProducerClosedError False"]


def test_ctrl_c_in_a_with_block_ends_the_program(broker):
    with start(
        broker,
        """
        with make() as producer:
            producer.send("t", b"v").result(100)
            print("ready", flush=True)
            while True:  # a signal that comes just before a wait does not end it
                time.sleep(0.05)
        """,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert "KeyboardInterrupt" in err
    assert broker.values() == [b"v"]


# ------------------------------------------------------------------------------------------------ the registry


class Subject:
    """Stands for a producer."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.exits: list[float] = []
        self.forks = 0
        self.begun = False

    def after_fork_in_child(self) -> None:
        self.forks += 1

    def begin_exit(self) -> None:
        self.begun = True

    def end_exit(self, seconds: float) -> None:
        assert self.begun
        self.exits.append(seconds)
        if self.error is not None:
            raise self.error


def test_one_that_fails_at_exit_does_not_keep_the_others_from_it(caplog):
    subjects = [Subject(RuntimeError("no")), Subject(), Subject(RuntimeError("no"))]
    for subject in subjects:
        lifecycle.register(subject)
    try:
        lifecycle._at_exit()
    finally:
        for subject in subjects:
            lifecycle.unregister(subject)
    assert all(len(subject.exits) == 1 for subject in subjects)
    assert sum(subject.exits[0] for subject in subjects) <= 3 * lifecycle.EXIT_FLUSH_SECONDS
    assert caplog.text.count("could not be closed at exit") == 2


def test_a_producer_that_is_made_at_exit_keeps_no_other_from_its_end():
    """Another thread may make one at any moment: here, before each line that runs at the exit."""
    subjects = [Subject(), Subject()]
    others = []

    def trace(*_: object) -> object:
        if len(others) < 50:
            others.append(Subject())
            lifecycle.register(others[-1])
        return trace

    for subject in subjects:
        lifecycle.register(subject)
    before = sys.gettrace()
    try:
        sys.settrace(trace)
        lifecycle._at_exit()
    finally:
        sys.settrace(before)
        for subject in [*subjects, *others]:
            lifecycle.unregister(subject)
    assert others
    assert [len(subject.exits) for subject in subjects] == [1, 1]


def test_failures_are_logged_at_exit_also_after_ctrl_c(monkeypatch):
    told = []
    monkeypatch.setattr(lifecycle, "tell_at_exit", lambda: told.append(True))
    subject = Subject(KeyboardInterrupt())
    lifecycle.register(subject)
    try:
        with pytest.raises(KeyboardInterrupt):
            lifecycle._at_exit()
    finally:
        lifecycle.unregister(subject)
    assert told == [True]


def test_all_stop_accepting_before_one_is_waited_for(monkeypatch):
    subjects = [Subject() for _ in range(3)]
    begun_at_the_end: list[int] = []

    def note(*_: object) -> None:
        begun_at_the_end.append(sum(subject.begun for subject in subjects))

    monkeypatch.setattr(Subject, "end_exit", note)
    for subject in subjects:
        lifecycle.register(subject)
    try:
        lifecycle._at_exit()
    finally:
        for subject in subjects:
            lifecycle.unregister(subject)
    assert begun_at_the_end == [3, 3, 3]


def test_all_have_the_same_time_to_end(monkeypatch):
    """A program with many producers ends as soon as one with a single one."""
    clock = VirtualClock()
    given: list[float] = []

    def end(_, seconds: float) -> None:
        given.append(seconds)
        clock.advance(4)

    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(monotonic=clock.now))
    monkeypatch.setattr(Subject, "end_exit", end)
    subjects = [Subject() for _ in range(4)]
    for subject in subjects:
        lifecycle.register(subject)
    try:
        lifecycle._at_exit()
    finally:
        for subject in subjects:
            lifecycle.unregister(subject)
    assert lifecycle.EXIT_FLUSH_SECONDS == 10
    assert given == [10, 6, 2, 0]


def test_one_that_was_closed_is_left_alone():
    subject = Subject()
    lifecycle.register(subject)
    lifecycle.unregister(subject)
    lifecycle.unregister(subject)
    lifecycle._at_exit()
    assert subject.exits == []


def test_an_io_thread_of_a_forgotten_producer_is_waited_for():
    thread = threading.Timer(0.05, lambda: None)
    thread.start()
    lifecycle.adopt(thread, lambda: 0)
    lifecycle._at_exit()
    assert not thread.is_alive()


def test_an_io_thread_that_has_ended_is_forgotten_with_what_counts_its_records():
    class Counts:
        def left(self):
            return 0

    counts = Counts()
    watched = weakref.ref(counts)
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    lifecycle.adopt(ended, counts.left)
    del counts
    next_one = threading.Thread(target=lambda: None)
    next_one.start()
    lifecycle.adopt(next_one, lambda: 0)
    next_one.join()
    gc.collect()
    assert watched() is None


# ---------------------------------------------------------------------------------------------- beginning and end


def test_a_producer_whose_thread_cannot_start_leaves_nothing_open(broker, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    class Closes(Interceptor):
        closed = 0

        def close(self):
            self.closed += 1

    made = []
    client_of = lifecycle.assemble
    monkeypatch.setattr(lifecycle, "assemble", lambda config: made.append(client_of(config)) or made[-1])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    plugin = Closes()
    with pytest.raises(RuntimeError, match="new thread"):
        Producer(bootstrap_servers=broker.address, interceptors=[plugin])
    assert plugin.closed == 1
    (parts,) = made
    with pytest.raises(IllegalStateError, match="the client is closed"):
        parts.client.ready(parts.metadata.nodes()[0], 0.0)


@pytest.mark.parametrize("works", [True, False], ids=["the thread works", "the thread comes later"])
def test_ctrl_c_while_the_thread_starts_leaves_nothing_open(broker, monkeypatch, caplog, works):
    """Its starter waits for its first step, and cannot know whether the thread comes."""
    started = threading.Event()
    start, run = threading.Thread.start, IOThread.run
    threads, made = [], []
    client_of = lifecycle.assemble

    def run_and_say(io_thread):
        started.set()
        run(io_thread)

    def interrupt(thread):
        if not thread.name.startswith("penstock-producer-"):  # the broker starts one for each connection
            start(thread)
            return
        threads.append(thread)
        if works:
            start(thread)
            assert started.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(lifecycle, "assemble", lambda config: made.append(client_of(config)) or made[-1])
    monkeypatch.setattr(IOThread, "run", run_and_say)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Producer(bootstrap_servers=broker.address)
    (thread,), (parts,) = threads, made
    if not works:
        start(thread)
    thread.join(60)
    assert not thread.is_alive()
    assert started.is_set() is works
    with pytest.raises(IllegalStateError, match="the client is closed"):
        parts.client.ready(parts.metadata.nodes()[0], 1e12)
    assert "unexpected error" not in caplog.text


def test_a_close_after_one_that_was_interrupted_at_its_beginning_delivers(broker, monkeypatch):
    linger = {"linger_ms": 1_000_000, "delivery_timeout_ms": 2_000_000}
    closed: list[int] = []

    class Closes(Interceptor):
        def close(self):
            closed.append(1)

    producer = Producer(
        bootstrap_servers=broker.address, enable_idempotence=False, interceptors=[Closes()], **linger
    )
    delivery = producer.send("t", b"v")

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ProducerParts, "begin_close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    assert closed == []
    producer.close(60)
    assert delivery.exception(0) is None
    assert broker.values() == [b"v"]
    producer.close()
    assert closed == [1]


def test_a_producer_that_is_forgotten_after_an_interrupted_close_delivers(broker, monkeypatch):
    linger = {"linger_ms": 1_000_000, "delivery_timeout_ms": 2_000_000}
    producer = Producer(bootstrap_servers=broker.address, enable_idempotence=False, **linger)
    delivery = producer.send("t", b"v")
    thread = producer._core.thread

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ProducerParts, "begin_close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    gc.collect()  # a traceback holds the frames that it went through
    with pytest.warns(ResourceWarning, match="1 record has no outcome yet"):
        del producer
    assert thread in lifecycle._orphans  # the end of the program waits for it
    assert delivery.exception(60) is None
    thread.join(60)
    assert not thread.is_alive()


def test_ctrl_c_in_the_code_of_a_plugin_does_not_keep_the_others_open(broker):
    ended: list[str] = []

    class Interrupted(Interceptor):
        def __init__(self, name):
            self.name = name

        def close(self):
            ended.append(self.name)
            raise KeyboardInterrupt

        def start(self, source):
            pass

        def stop(self, source):
            self.close()

    plugins = [Interrupted(name) for name in ("a", "b")]
    reporters = [Interrupted(name) for name in ("y", "z")]
    producer = Producer(bootstrap_servers=broker.address, interceptors=plugins, metric_reporters=reporters)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    producer.close()
    assert ended == ["y", "z", "b", "a"]


def test_ctrl_c_before_the_first_plugin_is_closed_leaves_them_to_the_next_close(broker):
    closed: list[int] = []

    class Closes(Interceptor):
        def close(self):
            closed.append(1)

    class InterruptedLock:
        """Ctrl-C comes when it has been let go."""

        def __enter__(self):
            return True

        def __exit__(self, *_):
            raise KeyboardInterrupt

    producer = Producer(bootstrap_servers=broker.address, interceptors=[Closes()])
    core = producer._core
    lock, core._lock = core._lock, InterruptedLock()
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert closed == []
    assert core in lifecycle._living  # the end of the program would close it as well
    core._lock = lock
    producer.close()
    producer.close()
    assert closed == [1]
    assert core not in lifecycle._living


def test_calls_that_wait_for_the_end_are_released_when_the_io_thread_dies():
    class RaisesSystemExit:
        def run(self):
            raise SystemExit

    ended = Ticket("the end")
    with pytest.raises(SystemExit):
        lifecycle._work(RaisesSystemExit(), ended, [])
    assert ended.done
