"""The page, played whole: a batch went wrong, found, taken back, run again, undone, reprocessed."""

from __future__ import annotations

import json
import re
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.local.visits import VisitGenerator
from ebbtide.systems.harness import read_topic
from tests.browser import check_access, open_browser
from tests.conftest import Cli
from tests.e2e.conftest import QUICK_JAVA, QUICK_START, run, wait_until
from tests.page.served import Served, open_timeline, serve, shoot, shown, visit

JOB = "visits-counter"
SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
START = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
STEP = timedelta(minutes=25)
"""Ten rounds of visits, each one to four minutes after the last."""
BROKEN = 700
METRICS = re.compile(r"Metrics for Prometheus: (http://127\.0\.0\.1:[1-9]\d*/metrics)")
SPARK_MS = 90_000
"""So long a Spark that has to be started may take."""


def visits(step: int) -> list[dict[str, bytes]]:
    """A thousand visits, the thousand after them, …"""
    (chunk,) = VisitGenerator(count=1_000, seed=step, start=START + step * STEP).messages()
    return chunk


def wrong(step: int) -> list[dict[str, bytes]]:
    """A release of the site went wrong: most of its visits have no time that can be read."""
    sent = visits(step)
    for message in sent[:BROKEN]:
        message["value"] = message["value"].replace(b'"event_time":"', b'"event_time":"about ')
    sent[0] |= {"key": SCRIPT.encode(), "value": json.dumps({"event_id": IMAGE}).encode()}
    sent[1] |= {"key": b"large", "value": b'{"page":"' + b"x" * 1_000_000 + b'"}'}
    return sent


def late(step: int) -> list[dict[str, bytes]]:
    """Visits, and two hundred of the first half hour that come far too late."""
    sent = visits(step)
    for number in range(200):
        at = START + timedelta(minutes=number % 30)
        event = {"event_id": f"late-{number}", "visit_id": number, "event_time": at.isoformat()}
        sent.append({"key": b"late", "value": json.dumps(event).encode()})
    return sent


STEPS = (visits, visits, wrong, late, visits)
"""Each is a batch with records, and one without that closes windows."""
WRONG, LAST = 4, 9


@pytest.mark.usefixtures("one_jvm")
def test_the_page(inside: Cli, settings: Settings) -> None:
    where = ("--home", settings.home, "--bootstrap-servers", settings.kafka.address)
    kafka.create_missing_topics(settings.kafka, ["visits", "visits_counter"])
    for step, make in enumerate(STEPS):
        with kafka.Sender(settings.kafka, "visits") as sender:
            sender.send_all(make(step))
        done = inside("run", JOB, "--available-now", *where, *QUICK_START)
        assert done.returncode == 0, done.stderr
    metrics = ("--metrics-port", "0")
    done = inside("archive", JOB, "--available-now", *where, *metrics, *QUICK_START)
    assert done.returncode == 0, done.stderr
    assert METRICS.search(done.stderr)
    servers = ("--bootstrap-servers", settings.kafka.address)
    with (
        open_browser() as browser,
        shown(settings.home) as home,
        serve(home, *servers, **QUICK_JAVA) as served,
        visit(browser, served) as (page, _),
    ):
        find_it(page, served)
        look_at_its_records(page)
        look_at_its_state(page, served)
        rewind(page, settings.checkpoint(JOB))
        watch_the_replay(page, served, settings)
        undo(page, settings.checkpoint(JOB))
        reprocess(page, served, settings)
        read_the_log(page)


def find_it(page: Page, served: Served) -> None:
    """From the list to the batch with seven hundred broken records, by the keyboard."""
    page.goto(served.origin)
    row = page.get_by_role("row").filter(has_text=f"/{JOB}")
    expect(row).to_contain_text(f"{LAST},")
    expect(row).to_contain_text("stopped")
    archive = page.get_by_role("row").filter(has_text=f"/{JOB.partition('-')[0]}-archive")
    expect(archive).to_contain_text("stopped")
    check_access(page)
    shoot(page, "checkpoints")
    page.get_by_role("link", name=JOB, exact=True).click()
    expect(page.locator("#timeline canvas").first).to_be_visible()
    expect(page.locator("#facts")).to_contain_text("0 records")
    page.locator("#timeline").focus()
    page.keyboard.press("Home")
    for _ in range(LAST):
        if page.locator("#timeline-value-broken").inner_text() == str(BROKEN):
            break
        page.keyboard.press("ArrowRight")
    expect(page.locator(f"#batch-view[data-batch='{WRONG}']")).to_be_visible()
    expect(page.locator("#metrics .tile").first).to_be_visible()
    check_access(page)
    page.locator("#metrics").scroll_into_view_if_needed()
    shoot(page, "metrics")


def look_at_its_records(page: Page) -> None:
    """A key that is a script, a value that is an image, one of a megabyte: text, and cut."""
    page.get_by_role("link", name="Open as a page").click()
    page.get_by_role("button", name="Show its first records").click()
    records = page.locator("#records .records")
    expect(records).to_contain_text(SCRIPT)
    expect(records).to_contain_text(IMAGE)
    expect(records).to_contain_text("first part of 976.6 KiB")
    assert len(page.content()) < 200_000
    assert page.locator("main img, main script").count() == 0
    check_access(page)
    page.evaluate("scrollTo(0, 0)")
    shoot(page, "batch")
    page.locator("#records").scroll_into_view_if_needed()
    shoot(page, "records")


def look_at_its_state(page: Page, served: Served) -> None:
    """The windows that were open after it, and what it changed."""
    page.get_by_role("link", name="State after this batch").click()
    expect(page.locator("#state-rows[data-count]")).to_be_visible(timeout=SPARK_MS)
    expect(page.locator("#state-rows")).to_contain_text("window")
    check_access(page)
    shoot(page, "state")
    whole = page.locator("#state-rows tbody tr").count()
    page.get_by_label("Key contains").fill(f"{START + timedelta(hours=1):%H:%M}")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#state-rows[data-count]")).to_be_visible(timeout=SPARK_MS)
    assert 0 < page.locator("#state-rows tbody tr").count() < whole
    page.goto(f"{served.origin}/checkpoints/{_key(page)}/state/diff?from={WRONG - 1}&to={WRONG}")
    expect(page.locator("#state-rows[data-count]")).to_be_visible(timeout=SPARK_MS)
    expect(page.locator("#state-rows")).to_contain_text("added")
    check_access(page)
    shoot(page, "state-diff")
    page.goto(f"{served.origin}/checkpoints/{_key(page)}#batch-{WRONG}")


def _key(page: Page) -> str:
    return page.url.partition("/checkpoints/")[2].partition("/")[0]


def rewind(page: Page, folder: Path) -> None:
    """The plan in one screen; the name typed; done."""
    page.get_by_role("link", name="Rewind from here").click()
    expect(page.locator("#plan")).to_contain_text("6 batches run again")
    expect(page.locator("#sink")).to_contain_text(
        "visits_counter gets the output of batches 4 to 9"
    )
    check_access(page)
    shoot(page, "rewind", whole=True)
    page.get_by_label("to confirm").fill(JOB)
    page.get_by_role("button", name="Rewind to batch 4").click()
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=60_000)
    check_access(page)
    shoot(page, "rewound")
    assert not (folder / "commits" / str(WRONG)).exists()


def watch_the_replay(page: Page, served: Served, settings: Settings) -> None:
    """The job again: its batches come up on the page as they end, without a reload."""
    open_timeline(page, served, JOB)
    expect(page.locator("#timeline-value-batch")).to_have_text(str(WRONG))
    page.evaluate("window.same = true")
    folder = settings.checkpoint(JOB)
    with run(settings, JOB, "--metrics-port", "0") as job:
        wait_until(lambda: (folder / "commits" / "6").exists(), job)
        expect(page.locator("#facts")).to_contain_text(f"process {job.pid}", timeout=60_000)
        expect(page.locator("#timeline-value-batch")).to_have_text("6", timeout=60_000)
        # a moment after its end, what it did is in the history; until then, "not committed" or "-"
        took = page.locator("#timeline-value-duration")
        expect(took).to_have_text(re.compile(r"\d"), timeout=60_000)
        page.locator("#timeline").focus()
        page.keyboard.press("End")
        expect(page.locator("#batch-view[data-batch='6']")).to_be_visible()
        assert page.evaluate("window.same"), "it was loaded anew"
        check_access(page)
        page.evaluate("scrollTo(0, 0)")
        shoot(page, "replayed")
        read_its_metrics("\n".join(job.errors()))
        assert job.stop() == 0
    expect(page.locator("#facts")).not_to_contain_text(f"process {job.pid}", timeout=60_000)


def read_its_metrics(said: str) -> None:
    """As Prometheus does, at the address that the job has said."""
    address = METRICS.search(said)
    assert address is not None, said
    with urllib.request.urlopen(address[1], timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found = {one.name: one for family in families for one in family.samples}
    assert found["ebbtide_running"].labels == {"pipeline": JOB}
    assert found["ebbtide_running"].value == 1
    assert found["ebbtide_batches_total"].value >= 3, "those that ran again, and no other"
    assert found["ebbtide_broken_records_total"].value == BROKEN
    assert found["ebbtide_last_batch"].value >= 6
    assert found["ebbtide_lag_records"].value == 0


def undo(page: Page, folder: Path) -> None:
    """Back to before the rewind."""
    page.get_by_role("link", name="Undo the last rewind").click()
    expect(page.locator("#undo-plan")).to_be_visible()
    check_access(page)
    shoot(page, "undo")
    page.get_by_label("to confirm").fill(JOB)
    page.get_by_role("button", name="Undo the rewind").click()
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=60_000)
    assert (folder / "commits" / str(LAST)).exists()


def reprocess(page: Page, served: Served, settings: Settings) -> None:
    """The range of the first batch: what the late visits change, first compared, then written."""
    open_timeline(page, served, JOB)
    page.locator("#timeline").focus()
    for key in ("Home", "Shift+R", "Shift+R"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Reprocess this range").click()
    start, end = (page.locator(f"#{edge}").input_value() for edge in ("start", "end"))
    assert start == f"{START:%Y-%m-%dT%H:%M:%SZ}"
    check_access(page)
    before = len(read_topic(settings, "visits_counter"))
    page.get_by_role("button", name="Compare, write nothing").click()
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=SPARK_MS)
    expect(page.locator("#changes tbody tr")).to_have_count(3)
    expect(page.locator("#changes")).to_contain_text("count")
    expect(page.locator("#diff-plot canvas")).to_be_visible()
    check_access(page)
    shoot(page, "reprocess", whole=True)
    assert len(read_topic(settings, "visits_counter")) == before
    page.get_by_role("link", name="Back to the range").click()
    assert [page.locator(f"#{edge}").input_value() for edge in ("start", "end")] == [
        start,
        end,
    ]
    page.get_by_label("to confirm").fill(JOB)
    page.get_by_role("button", name="Reprocess and write").click()
    expect(page.locator("#task[data-state=done]")).to_be_visible(timeout=SPARK_MS)
    expect(page.locator("#result")).to_contain_text("3 results written")
    written = read_topic(settings, "visits_counter")[before:]
    assert len(written) == 3
    assert all(b"ebbtide-run-id" in str(record.headers).encode() for record in written)


def read_the_log(page: Page) -> None:
    """Who did what."""
    page.get_by_role("link", name="Audit log").click()
    for what in ("Rewind to batch 4", "Undo", "Reprocess"):
        expect(page.get_by_role("table")).to_contain_text(what)
    check_access(page)
    shoot(page, "audit")
