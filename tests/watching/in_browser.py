# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser: what it shows while a producer works, is cut off, waits or is held up.

Run by `make test-watching`. The browser is Debian's package chromium; CHROMIUM names another one. It is driven by
playwright, of the extra `browser`. PENSTOCK_SCREENSHOTS=DIRECTORY makes the pictures of the documentation there.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from penstock import Producer
from penstock.protocol.messages import PRODUCE
from penstock.testing import FakeKafka, Fault
from penstock.watching import glass_box

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# What drives the browser keeps an event loop on the thread of the tests.
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:.* blocks the event loop:RuntimeWarning"),
]

SECONDS = 60.0  # until something must be seen; a busy machine may need them
PAGE = "127.0.0.1:0"
TOKEN = "0123456789abcdef-token"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.fail("there is no playwright: pip install playwright")
    program = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if program is None:
        pytest.fail(
            "there is no browser: install Debian's package chromium, or let CHROMIUM name the program"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


class Viewer:
    """A page of the browser, and all that it complains about or asks for."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))
        page.set_default_timeout(SECONDS * 1000)

    def open(self) -> None:
        self.page.goto(self.url)
        self.page.wait_for_selector("main:not([hidden])")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def wait(self, selector: str, words: str) -> float:
        """Wait until an element says something; the seconds that it took."""
        started = time.monotonic()
        self.page.wait_for_function(
            "([selector, words]) => new RegExp(words).test(document.querySelector(selector)?.innerText ?? '')",
            arg=[selector, words],
        )
        return time.monotonic() - started

    def picture(self, name: str, *, whole: bool = True) -> None:
        folder = os.environ.get("PENSTOCK_SCREENSHOTS")
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = str(Path(folder) / f"glass-box-{name}.png")
            # Bars move to their new width; a picture shall have them where the text says.
            self.page.screenshot(path=path, full_page=whole, animations="disabled")

    def check(self) -> None:
        """Nothing was wrong, and nothing has left this machine."""
        assert self.complaints == []
        assert {urlsplit(url).netloc for url in self.asked} == {urlsplit(self.url).netloc}


@contextmanager
def viewer(browser: Browser, **options: Any) -> Iterator[Viewer]:
    """Somebody who looks at the page of this process."""
    (url,) = glass_box.urls()
    context = browser.new_context(**({"viewport": {"width": 1180, "height": 900}} | options))
    try:
        seen = Viewer(context.new_page(), url)
        seen.open()
        yield seen
        seen.check()
    finally:
        context.close()


@contextmanager
def load(
    producer: Producer, *, topic: str = "orders", pause: float = 0.002, **options: Any
) -> Iterator[None]:
    """Somebody who sends, until told to stop."""
    stop = threading.Event()

    def send() -> None:
        number = 0
        while not stop.is_set():
            for _ in range(20):
                number += 1
                producer.send(topic, b"x" * 120, key=b"%d" % (number % 40), **options)
            stop.wait(pause)

    thread = threading.Thread(target=send, name="checkout")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def shop(brokers: int = 3, **options: Any) -> Iterator[tuple[FakeKafka, Producer]]:
    with FakeKafka(brokers=brokers, topics={"orders": 6, "clicks": 2}) as kafka:
        producer = Producer(
            **(
                {"bootstrap_servers": kafka.bootstrap_servers, "client_id": "shop", "glass_box": PAGE}
                | options
            )
        )
        try:
            yield kafka, producer
        finally:
            producer.close(5)


def test_lanes_move_and_numbers_count(browser: Browser) -> None:
    with shop() as (_, producer), load(producer), viewer(browser) as seen:
        seen.wait("#numbers", r"[1-9][\d,]* ?\n?")
        seen.wait("#lanes", r"orders 5[\s\S]*% full, \d+ record")
        first = seen.text("#lanes")
        seen.page.wait_for_function(
            "first => document.querySelector('#lanes').innerText !== first", arg=first
        )
        seen.wait("#brokers", r"ready[\s\S]*broker 2 at 127\.0\.0\.1")
        seen.wait("#leaving", r"linger\s+\d+ %, filled to \d+ %")
        seen.wait("#io-legend", r"waiting [1-9]\d* %")
        seen.wait("#advice", r"\d+ % of batches leave by linger\.ms=5 and are \d+ % full")
        seen.page.wait_for_timeout(8000 if "PENSTOCK_SCREENSHOTS" in os.environ else 0)
        seen.picture("light")
        seen.page.emulate_media(color_scheme="dark")
        seen.picture("dark")
        seen.page.set_viewport_size({"width": 390, "height": 844})
        width = seen.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, "the page is wider than a phone"
        seen.picture("phone", whole=False)
        seen.page.emulate_media(color_scheme="light")


def test_roles_and_names_for_those_who_do_not_see_it_and_the_keyboard(browser: Browser) -> None:
    with shop() as (_, producer), load(producer), viewer(browser) as seen:
        page = seen.page
        seen.wait("#advice", r"\w")
        for role, name in [
            ("heading", "Glass box"), ("heading", "Partitions"), ("heading", "Brokers"), ("heading", "Memory"),
            ("heading", "Follow a record"), ("combobox", "Producer"), ("button", "Pause"), ("meter", "Memory"),
            ("region", "Last events"), ("columnheader", "In flight"), ("rowheader", "orders 3"), ("region", "Advice"),
            ("textbox", "Key"),
        ]:  # fmt: skip
            assert page.get_by_role(role, name=name, exact=True).count() == 1, (role, name)  # type: ignore[arg-type]
        assert page.get_by_role("meter").get_attribute("aria-valuetext")
        assert "waiting" in (page.locator("#io-bar").get_attribute("aria-label") or "")
        assert seen.text("#announcer")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(2):
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "pause"
        page.keyboard.press("Enter")
        assert page.get_by_role("button", name="Go on").get_attribute("aria-pressed") == "true"
        page.wait_for_timeout(700)  # a look that is under way
        asked = len(seen.asked)
        before = seen.text("#numbers")
        page.wait_for_timeout(1200)
        assert (len(seen.asked), seen.text("#numbers")) == (asked, before)
        page.keyboard.press("Enter")
        page.wait_for_function(
            "before => document.querySelector('#numbers').innerText !== before", arg=before
        )


def test_a_killed_broker_is_shown_within_two_seconds_with_its_cause(browser: Browser) -> None:
    with shop(metadata_max_age_ms=1000) as (kafka, producer), load(producer), viewer(browser) as seen:
        took = []
        for number in range(3):  # the quickest counts: others may need this machine, too
            seen.wait("#brokers", r"broker 0[\s\S]*broker 1[\s\S]*broker 2")
            kafka.stop_broker(1)
            took.append(seen.wait("#brokers .bad, #brokers .warn", "broker 1 at 127.0.0.1"))
            cause = r"(closed the connection|cannot connect to broker 1|broke)"
            metadata = r"The metadata are \d+ s old and do not list this broker"
            seen.wait("#brokers .warn", rf"gone[\s\S]*{cause}[\s\S]*{metadata}")
            seen.wait("#advice", r"Broker 1: ")
            seen.wait("#events", r"broker 1 at .*: ")
            if number == 0:
                seen.picture("killed")
            kafka.start_broker(1)
            with kafka.locked() as cluster:
                cluster.move_leader("orders", 1, to=1)
            seen.page.wait_for_function("() => !document.querySelector('#brokers .bad, #brokers .warn')")
            seen.wait("#brokers", rf"broker 1 [\s\S]*last error \d+ s ago: [^\n]*{cause}[\s\S]*broker 2 ")
        assert min(took) < 2.0, took


def test_a_frozen_broker_is_shown_with_the_time(browser: Browser) -> None:
    with shop() as (kafka, producer), viewer(browser) as seen:
        producer.send("orders", b"x", partition=0).result(SECONDS)
        kafka.add_fault(Fault(api=PRODUCE, delay=4 * SECONDS))
        delivery = producer.send("orders", b"x", partition=0)
        seen.wait("#brokers .bad", r"no answer for [2-9] s")
        seen.wait("#advice", r"no answer for \d+ s\. A batch waits for it")
        seen.wait("#lanes", r"1 for [\d.]+ s")
        seen.picture("frozen")
        assert not delivery.done()
        producer.close(0)


def advice_with(browser: Browser, linger_ms: int, pause: float, picture: str | None = None) -> str:
    with shop(linger_ms=linger_ms) as (_, producer), load(producer, pause=pause), viewer(browser) as seen:
        seen.wait("#advice", r"% of batches leave|Nothing holds the producer up")
        seen.page.wait_for_timeout(2500)
        if picture is not None:
            seen.page.set_viewport_size({"width": 1180, "height": 460})
            seen.picture(picture, whole=False)
        return seen.text("#advice")


def test_the_advice_follows_linger(browser: Browser) -> None:
    assert "leave by linger.ms=5" in advice_with(browser, 5, 0.002)
    assert "leave by linger.ms=10" in advice_with(browser, 10, 0.002, "linger")
    assert "leave by linger.ms" not in advice_with(browser, 5000, 0.0)


def test_who_waits_for_memory_and_a_callback_that_blocks(browser: Browser) -> None:
    go_on = threading.Event()
    program: dict[str, Any] = {"wait": go_on.wait}
    exec(compile("def charge_the_customer(metadata, error):\n    wait(240)", "shop.py", "exec"), program)
    charge_the_customer = program["charge_the_customer"]

    with shop(buffer_memory=65536, linger_ms=0) as (_, producer), viewer(browser) as seen:
        producer.send("orders", b"x").result(SECONDS)
        producer.send("orders", b"x", on_delivery=charge_the_customer)
        try:
            seen.wait(
                "#advice .bad", r"A callback has run on the I/O thread for [\d.]+ s, in .*charge_the_customer"
            )
            seen.wait("#io-text", r"Now: callbacks, for")
            with load(producer):
                seen.wait("#memory-text", r"1 wait for memory")
                seen.wait("#waits", r"checkout waits [\d.]+ (ms|s) for")
                seen.wait("#advice", r"1 sender waits for memory")
                seen.picture("held-up")
                go_on.set()
                seen.wait("#io-text", r"^$")
        finally:
            go_on.set()


def test_a_record_is_followed(browser: Browser) -> None:
    with shop(linger_ms=20) as (_, producer), load(producer), viewer(browser) as seen:
        seen.wait("#lanes", "orders 5")
        seen.page.get_by_label("Topic").fill("orders")
        seen.page.get_by_label("Key").fill("17")
        seen.page.get_by_label("Key").press("Enter")
        seen.wait(
            "#follow-steps", r"send\(\) was called[\s\S]*It is record[\s\S]*left with[\s\S]*at offset \d+"
        )
        seen.page.locator("#follow-title").scroll_into_view_if_needed()
        seen.picture("followed")
        seen.page.get_by_label("Topic").fill("clicks")
        seen.page.get_by_label("Key").fill("")
        seen.page.get_by_label("Topic").press("Enter")
        seen.wait("#follow-text", "Waits for a record of clicks")
        seen.page.get_by_role("button", name="Stop").click()


def test_names_are_words_and_not_markup(browser: Browser) -> None:
    name = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
    with shop(client_id=name, max_block_ms=500) as (_, producer), viewer(browser) as seen:
        with pytest.raises(Exception, match="script"):
            producer.send(name[:60], b"x")
        seen.page.get_by_label("Topic").fill(name)
        seen.page.get_by_label("Topic").press("Enter")
        seen.wait("#follow-text", re.escape("<script>"))
        assert seen.page.locator("#producer option").inner_text() == name
        assert seen.page.locator("main script, main img, header script, header img").count() == 0
        assert seen.page.title().startswith("<script>")


def test_a_token_opens_the_page(browser: Browser) -> None:
    with shop(glass_box_token=TOKEN) as (_, producer), load(producer):
        (url,) = glass_box.urls()
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.get_by_label("This page needs its token").fill("wrong-wrong-wrong")
        page.get_by_role("button", name="Show").click()
        # Not an expression: the page's policy forbids to evaluate one again and again.
        page.locator("#trouble").get_by_text("The token is wrong.", exact=True).wait_for()
        page.get_by_label("This page needs its token").fill(TOKEN)
        page.get_by_role("button", name="Show").click()
        page.wait_for_selector("main:not([hidden])")
        context.close()
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{url}#token={TOKEN}")
        page.wait_for_selector("main:not([hidden])")
        assert TOKEN not in page.url
        page.reload()
        page.wait_for_selector("main:not([hidden])")
        context.close()


def test_ten_thousand_partitions_take_less_than_a_second_and_20_mb(browser: Browser) -> None:
    with shop(1, buffer_memory=1 << 28, batch_size=1024, linger_ms=600_000, delivery_timeout_ms=900_000) as (
        kafka,
        producer,
    ):
        kafka.create_topic("many", 10_000)
        for partition in range(10_000):
            producer.send("many", b"x", partition=partition)
        with viewer(browser) as seen:
            seen.wait("#lanes-text", r"10,000 partitions of 1 topic, 10,000 busy")
            assert seen.page.locator("#lanes tr").count() == 200
            assert quickest(lambda: seen.page.evaluate("ask('api/state')")) < 1.0
            tracemalloc.start()
            try:
                seen.page.wait_for_timeout(300)
                seen.page.evaluate("ask('api/state')")
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 20_000_000
        producer.close(0)


def quickest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        started = time.monotonic()
        work()
        times.append(time.monotonic() - started)
        time.sleep(0.3)
    return min(times)
