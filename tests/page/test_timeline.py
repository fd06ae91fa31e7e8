"""The list of checkpoints and the timeline of one, as a person uses them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ebbtide.history.store import HISTORY
from ebbtide.storage import open_folder
from tests.browser import check_access
from tests.page.conftest import LONG, SHORT, Windows
from tests.page.served import Served, colours, open_timeline, shoot
from tests.page.stories import BROKEN, IMAGE, Story, run_another, tell

LAST, WRONG = LONG.batches - 1, LONG.wrong


@pytest.fixture
def page(large: Served, windows: Windows) -> Page:
    """The timeline of the long one."""
    page = windows.open(large)
    open_timeline(page, large, "visits-counter")
    return page


def said(page: Page, name: str) -> str:
    """A value in the line above the timeline."""
    return page.locator(f"#timeline-value-{name}").inner_text()


def batch(page: Page) -> int:
    return int(said(page, "batch"))


def point(page: Page, share: float) -> tuple[float, float]:
    """A point of the timeline, so far from the left."""
    box = page.locator("#timeline .panel").nth(1).locator(".u-over").bounding_box()
    assert box is not None
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def hover(page: Page, share: float) -> int:
    """The batch that is read out when the pointer is there."""
    page.mouse.move(*point(page, share))
    return batch(page)


def drag(page: Page, start: float, end: float) -> None:
    page.mouse.move(*point(page, start))
    page.mouse.down()
    page.mouse.move(*point(page, (start + end) / 2))
    page.mouse.move(*point(page, end))
    page.mouse.up()


def test_the_list(large: Served, windows: Windows) -> None:
    page = windows.open(large)
    row = page.get_by_role("row").filter(has_text="/visits-counter")
    expect(row).to_contain_text("batch 9901")
    expect(row.get_by_role("link", name=str(LAST))).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="visits-short")).to_contain_text("11,")
    expect(page.get_by_role("row").filter(has_text=IMAGE).first).to_be_visible()
    check_access(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn(large: Served, windows: Windows, scheme: str) -> None:
    page = windows.open(large, color_scheme=scheme)
    open_timeline(page, large, "visits-counter")
    for panel in page.locator("#timeline .panel").all():
        assert colours(panel) > 3
    titles = page.locator("#timeline .panel-title").all_inner_texts()
    assert [title.split(",")[0] for title in titles] == [
        *("Rows", "Duration", "Event time", "Lag", "State", "State"),
    ]
    check_access(page)
    page.locator("#timeline").focus()
    page.keyboard.press("End")
    expect(page.locator(f"#batch-view[data-batch='{LAST}']")).to_be_visible()
    check_access(page)
    if scheme == "dark":
        shoot(page, "timeline-dark", whole=True)


def test_the_batch_that_went_wrong(page: Page) -> None:
    """It stands out: few good records, many broken ones."""
    drag(page, 0.974, 0.989)
    page.locator("#timeline").focus()
    for key in ("End", *["Shift+ArrowLeft"] * 3, *["ArrowLeft"] * 9):
        page.keyboard.press(key)
    assert batch(page) == WRONG
    assert said(page, "broken") == str(BROKEN)
    expect(page.locator(f"#batch-view[data-batch='{WRONG}']")).to_be_visible()
    expect(page.locator("#metrics .tile").first).to_be_visible()
    shoot(page, "timeline", whole=True)


def test_the_pointer_reads_out(page: Page) -> None:
    assert batch(page) == LAST
    left, middle = hover(page, 0.1), hover(page, 0.5)
    assert 0 < left < middle < LAST
    assert said(page, "at").startswith("20")
    assert int(said(page, "rows").replace(",", "")) > 0
    assert said(page, "watermark") < said(page, "at")
    assert said(page, "again") == "no"


def test_a_click_opens_a_batch(page: Page) -> None:
    page.mouse.click(*point(page, 0.3))
    chosen = batch(page)
    expect(page.locator(f"#batch-view[data-batch='{chosen}']")).to_be_visible()
    assert page.url.endswith(f"#batch-{chosen}")
    page.reload()
    expect(page.locator(f"#batch-view[data-batch='{chosen}']")).to_be_visible()


def test_the_keyboard(page: Page) -> None:
    timeline = page.locator("#timeline")
    timeline.focus()
    for key, chosen in (
        ("End", LAST),
        ("ArrowLeft", LAST - 1),
        ("Shift+ArrowLeft", LAST - 11),
        ("ArrowRight", LAST - 10),
        ("Home", 0),
        ("ArrowLeft", 0),
    ):
        page.keyboard.press(key)
        expect(timeline).to_have_attribute("aria-valuenow", str(chosen))
    assert "Batch 0" in (timeline.get_attribute("aria-valuetext") or "")
    page.keyboard.press("Enter")
    expect(page.locator("#batch h2").first).to_be_focused()
    timeline.focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    check_access(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_zoom(page: Page) -> None:
    whole = [hover(page, share) for share in (0.1, 0.9)]

    def seen() -> list[int]:
        return [hover(page, share) for share in (0.1, 0.9)]

    drag(page, 0.4, 0.6)
    near = seen()
    assert whole[0] < near[0] < near[1] < whole[1]
    page.mouse.dblclick(*point(page, 0.5))
    assert seen() == whole
    page.get_by_role("button", name="Zoom in").click()
    near = seen()
    assert near[1] - near[0] < (whole[1] - whole[0]) * 0.6
    page.get_by_role("button", name="Zoom out").click()
    page.get_by_role("button", name="All").click()
    assert seen() == whole
    page.mouse.move(*point(page, 0.5))
    page.evaluate("addEventListener('wheel', () => { window.turned = true })")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("() => window.turned")
    near = seen()
    assert near[1] - near[0] < whole[1] - whole[0]
    page.locator("#timeline").focus()
    page.keyboard.press("Escape")
    assert seen() == whole
    page.keyboard.press("+")
    assert seen() != whole


GAPPY = Story(batches=90, idle=timedelta(days=2))


def test_an_idle_gap_does_not_crush_the_batches(
    small: Served, windows: Windows, home: Path
) -> None:
    """Two days without a batch are drawn short; by batch, there is no gap."""
    tell(home / "checkpoints" / "gappy", GAPPY)
    page = windows.open(small)
    open_timeline(page, small, "gappy")
    assert 20 < hover(page, 0.25) < 30
    assert 85 < hover(page, 0.98) < 90
    before, after = hover(page, 0.55), hover(page, 0.75)
    assert 45 < before < 60 < after < 70
    expect(page.locator("#legend-gap")).to_be_visible()
    drag(page, 0.7, 0.9)
    assert 60 <= hover(page, 0.02) < hover(page, 0.98) < 85, "the zoom is where the pointer was"
    page.get_by_role("button", name="By batch").click()
    expect(page.locator("#legend-gap")).to_be_hidden()


def test_the_axis_with_gaps(large: Served, windows: Windows) -> None:
    """Times and places on it are each other's inverse, and labels are at round times."""
    page = windows.open(large)
    found = page.evaluate(
        """async () => {
            const { makeAxis, splitsOf } = await import("/static/gaps.js");
            const minute = 60_000, day = 1440 * minute;
            const burst = (from) => Array.from({ length: 30 }, (_, n) => from + n * minute);
            const times = [...burst(0), ...burst(2 * day + 7), ...burst(9 * day)];
            const axis = makeAxis(times);
            const places = times.map(axis.at);
            const twice = (time) => axis.timeAt(axis.at(time));
            const probes = [-5 * minute, day, 5 * day, 12 * day, ...times];
            return {
                gaps: axis.gaps.length,
                length: places.at(-1) / minute,
                ascending: places.every((place, i) => !i || place > places[i - 1]),
                inverse: Math.max(...probes.map((time) => Math.abs(twice(time) - time))),
                round: splitsOf(axis, places[0], places.at(-1), 10 * minute)
                    .every((place) => Math.abs(axis.timeAt(place) % (10 * minute)) < 0.01),
                even: makeAxis(burst(0)).gaps.length,
            };
        }"""
    )
    assert found["inverse"] < 0.01
    assert (found["gaps"], found["ascending"], found["round"], found["even"]) == (2, True, True, 0)
    assert 90 < found["length"] < 120, "minutes, not days"


def test_rewind_is_the_first_thing_to_do(page: Page) -> None:
    """The one filled button in the head, before and after a batch is selected."""
    buttons = page.locator(".page-actions .button")
    expect(buttons.first).to_have_text("Rewind …")
    expect(page.locator(".page-actions .primary")).to_have_count(1)
    page.mouse.click(*point(page, 0.3))
    expect(buttons.first).to_have_text(f"Rewind to batch {batch(page)} …")
    chosen = batch(page)
    buttons.first.click()
    expect(page.locator("h1")).to_contain_text("Rewind")
    expect(page.locator("#to_batch")).to_have_value(str(chosen))


def test_by_batch(page: Page) -> None:
    before = page.locator("#timeline").screenshot()
    page.get_by_role("button", name="By batch").click()
    expect(page.get_by_role("button", name="By batch")).to_have_attribute("aria-pressed", "true")
    assert page.locator("#timeline").screenshot() != before
    assert abs(hover(page, 0.5) - LONG.batches / 2) < LONG.batches / 50


def test_a_range_for_a_reprocess(page: Page) -> None:
    page.get_by_role("button", name="Choose a range").click()
    drag(page, 0.3, 0.4)
    expect(page.locator("#timeline-range-text")).to_contain_text("read events of")
    start, end = (page.locator(f"#timeline-{edge}").input_value() for edge in ("start", "end"))
    assert start < end
    assert all(len(time) == len("2026-01-05T10:00:00Z") for time in (start, end)), (start, end)
    page.get_by_role("button", name="Reprocess this range").click()
    assert "/reprocess?" in page.url
    assert page.locator("[name=start]").input_value() == start
    assert page.locator("[name=end]").input_value() == end
    page.go_back()
    timeline = page.locator("#timeline")
    expect(timeline.locator("canvas").first).to_be_visible()
    timeline.focus()
    for key in ("End", "Shift+R", "Shift+ArrowLeft", "Shift+R"):
        page.keyboard.press(key)
    expect(page.locator("#timeline-range-text")).to_contain_text(f"Batches {LAST - 10} to {LAST}")


def test_the_table(page: Page) -> None:
    page.get_by_text("The same as a table").click()
    rows = page.locator("#timeline-table tbody tr")
    expect(rows.first).to_contain_text(str(LAST))
    assert rows.count() >= 50
    check_access(page)


def test_a_batch_comes_while_one_looks(small: Served, windows: Windows, home: Path) -> None:
    folder = home / "checkpoints" / "visits-counter"
    page = windows.open(small)
    open_timeline(page, small, "visits-counter")
    assert batch(page) == SHORT.batches - 1
    new = run_another(folder, SHORT)
    expect(page.locator("#timeline-value-batch")).to_have_text(str(new), timeout=60_000)
    expect(page.locator("#facts")).to_contain_text(f"{new},", timeout=60_000)
    assert open_folder(str(folder)).ids("commits")[-1] == new


def test_it_comes_back_after_it_was_empty(
    small: Served, windows: Windows, home: Path, tmp_path: Path
) -> None:
    """As after a rewind to the first batch: the batches that follow are drawn."""
    folder = home / "checkpoints" / "visits-counter"
    logs = [folder / name for name in ("offsets", "commits", HISTORY)]
    page = windows.open(small)
    open_timeline(page, small, "visits-counter")
    page.get_by_role("button", name="Zoom in").click()
    page.mouse.click(*point(page, 0.5))
    chosen = batch(page)
    expect(page.locator(f"#batch-view[data-batch='{chosen}']")).to_be_visible()
    kept = [(file, tmp_path / f"{log.name}-{file.name}") for log in logs for file in log.iterdir()]
    for file, aside in kept:
        file.rename(aside)
    expect(page.locator("#timeline")).to_contain_text("No batch has run yet", timeout=60_000)
    expect(page.locator("#timeline-value-batch")).to_have_text("-")
    expect(page.locator("#batch-view")).to_have_count(0)
    expect(page.locator("#facts")).to_contain_text("none yet", timeout=60_000)
    for file, aside in kept:
        aside.rename(file)
    expect(page.locator("#timeline canvas").first).to_be_visible(timeout=60_000)
    expect(page.locator(f"#batch-view[data-batch='{chosen}']")).to_be_visible()
    expect(page.locator("#facts")).to_contain_text(f"{SHORT.batches - 1},", timeout=60_000)
    assert hover(page, 0.02) == 0
    assert hover(page, 0.98) == SHORT.batches - 1


def test_what_is_known_of_the_chosen_batch_changes(
    small: Served, windows: Windows, home: Path, tmp_path: Path
) -> None:
    """Its entry in the history comes a moment after its commit."""
    place = home / "checkpoints" / "visits-counter" / HISTORY
    entry = place / f"{SHORT.batches - 1:012d}.jsonl"
    entry.rename(tmp_path / entry.name)
    page = windows.open(small)
    open_timeline(page, small, "visits-counter")
    page.locator("#timeline").focus()
    page.keyboard.press("End")
    expect(page.locator("#batch")).to_contain_text("was not recorded")
    page.get_by_role("link", name="Rewind from here").focus()
    (tmp_path / entry.name).rename(entry)
    expect(page.locator("#batch")).not_to_contain_text("was not recorded", timeout=60_000)
    expect(page.locator("#batch h2").first).to_be_focused()


def test_by_touch(large: Served, windows: Windows) -> None:
    page = windows.open(large, size=(400, 800), has_touch=True, is_mobile=True)
    open_timeline(page, large, "visits-counter")
    page.locator("#timeline").scroll_into_view_if_needed()
    page.touchscreen.tap(*point(page, 0.3))
    first = batch(page)
    assert 0 < first < LAST
    expect(page.locator(f"#batch-view[data-batch='{first}']")).to_be_visible()
    page.get_by_role("button", name="Choose a range").tap()
    for share in (0.4, 0.6):
        page.touchscreen.tap(*point(page, share))
    expect(page.locator("#timeline-range-text")).to_contain_text(f"to {batch(page)} read events")


def test_the_page_says_that_it_is_alone(small: Served, windows: Windows) -> None:
    page = windows.open(small)
    open_timeline(page, small, "visits-counter")
    expect(page.locator("#lost")).to_be_hidden()
    windows.allow(
        "ERR_CONNECTION_REFUSED",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_RESET",
        "sendError",
        "htmx:afterRequest",
    )
    small.stop()
    expect(page.locator("#lost")).to_be_visible(timeout=60_000)
    expect(page.locator("#lost")).to_contain_text("ebbtide ui")
    check_access(page)


def test_nothing_moves_for_those_who_do_not_want_it(large: Served, windows: Windows) -> None:
    page = windows.open(large, reduced_motion="reduce")
    open_timeline(page, large, "visits-counter")
    page.mouse.click(*point(page, 0.7))
    expect(page.locator("#batch-view")).to_be_visible()
    assert (
        page.evaluate("document.getAnimations().filter(a => a.playState == 'running').length") == 0
    )
    longest = """Math.max(...[...document.querySelectorAll('*')].map(
        e => parseFloat(getComputedStyle(e).transitionDuration)))"""
    assert page.evaluate(longest) <= 0.01
