"""The web page in headless Chromium: keyboard, confirmation, refresh, light and dark, narrow windows.

TIERLOG_SCREENSHOTS names a directory that keeps the pictures.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from headless_browser import Browser, browsing

from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.timeout(240)]

EVIL = "<img src=x onerror=\"document.title='owned'\">"
PATHS = {
    "cluster": "/",
    "topics": "/ui/topics",
    "topic": "/ui/topic?name=orders",
    "groups": "/ui/groups",
    "tiering": "/ui/tiering",
    "quorum": "/ui/quorum",
}
ACTIVE = "document.activeElement.textContent"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    """A tiered topic with records, and a group and client whose names are markup."""
    with TierlogBroker(tmp_path_factory.mktemp("browser") / "node") as broker:
        fill(broker)
        yield broker


def fill(broker: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    orders = NewTopic("orders", 2, 1, config={"remote.storage.enable": "true"})
    admin.create_topics([orders])["orders"].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(20):
        producer.produce("orders", b"value")
    producer.flush(60)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": EVIL, "client.id": EVIL}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert consumer.consume(1, 60)
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.fixture
async def browser(chromium: str, tmp_path: Path) -> AsyncIterator[Browser]:
    async with browsing(chromium, tmp_path / "profile") as found:
        yield found
        assert found.console == []  # no error, no refusal by the policy


async def test_pages_fit_in_light_and_dark_and_in_narrow_windows(
    broker: TierlogBroker, browser: Browser, tmp_path: Path
) -> None:
    pictures = Path(os.environ.get("TIERLOG_SCREENSHOTS", tmp_path))
    for scheme, background in {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 25, 31)"}.items():
        for width in (1180, 400):
            await browser.show(width, 800, scheme)
            for name, path in PATHS.items():
                await browser.open(broker.admin_url + path)
                wide = await browser.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, (name, width, wide)
                shown = await browser.evaluate("getComputedStyle(document.body).backgroundColor")
                assert shown == background
                await browser.screenshot(pictures / f"{name}-{scheme}-{width}.png")


async def test_names_of_clients_stay_text(broker: TierlogBroker, browser: Browser) -> None:
    await browser.open(broker.admin_url + "/ui/groups")
    await browser.evaluate("document.querySelector('td a').click()")
    await browser.until("location.pathname === '/ui/group' && document.readyState === 'complete'")
    heading = await browser.evaluate("document.querySelector('h1').textContent")
    assert heading == f"Group {EVIL}"
    assert await browser.evaluate("document.images.length") == 0
    assert await browser.evaluate("document.title") == f"Group {EVIL} · tierlog"


async def test_action_by_keyboard_asks_first(broker: TierlogBroker, browser: Browser) -> None:
    await browser.open(broker.admin_url + "/ui/tiering")
    await browser.press("Tab")
    assert await browser.evaluate(ACTIVE) == "Skip to the content"
    for _ in range(40):
        if await browser.evaluate(ACTIVE) == "Check local logs":
            break
        await browser.press("Tab")
    outline = await browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # the focus is visible
    await browser.press("Enter")
    assert await browser.evaluate("document.getElementById('confirm').open")
    assert await browser.evaluate(ACTIVE) == "Cancel"
    await browser.press("Enter")
    await browser.until("!document.getElementById('confirm').open")
    assert await browser.evaluate("document.getElementById('message').hidden")  # nothing was sent
    await browser.press("Enter")
    await browser.until("document.getElementById('confirm').open")
    await browser.press("Tab")
    assert await browser.evaluate(ACTIVE) == "Do it"
    await browser.press("Enter")
    await browser.until("document.getElementById('message').textContent === 'Done: Check local logs.'")


async def test_refresh_keeps_the_focus_and_shows_what_changed(
    broker: TierlogBroker, browser: Browser
) -> None:
    await browser.open(broker.admin_url + "/ui/topics")
    link = "[...document.querySelectorAll('td a')].find(one => one.textContent === 'orders')"
    await browser.evaluate(f"window.before = {link}; window.before.focus()")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("later", 1, 1)])["later"].result(60)
    await browser.until("document.querySelector('#live').textContent.includes('later')")
    assert await browser.evaluate(f"document.activeElement === {link}")
    assert await browser.evaluate("!document.contains(window.before)")


async def test_page_says_that_its_node_has_stopped(broker: TierlogBroker, browser: Browser) -> None:
    """Last, because it stops the node."""
    await browser.open(broker.admin_url + "/")
    broker.stop()
    await browser.until("document.getElementById('message').textContent.includes('does not answer')")
    assert await browser.evaluate("document.querySelector('#live').textContent.includes('Brokers')")
    browser.console.clear()  # the browser reports the refused connection
