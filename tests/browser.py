"""A real browser in: found, started, watched. `python -m tests.browser` says where it is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Playwright,
    Request,
    Response,
    sync_playwright,
)

VARIABLE = "EBBTIDE_CHROMIUM"
NO_BROWSER = (
    f"There is no Chromium for the tests of the web UI. Type scripts/browser to get one, or set "
    f"{VARIABLE} to where it is."
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = ("--disable-gpu", "--disable-background-networking")
_GRAVE = ("serious", "critical")
_DARK = "matchMedia('(prefers-color-scheme: dark)').matches"
_ALL: dict[str, Any] = {"resultTypes": ["violations"]}
_COLOURS = {**_ALL, "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""All in which one scheme of colours may fail and the other not."""


class NoBrowserError(Exception):
    """No Chromium was found."""


def find_chromium(playwright: Playwright) -> str:
    """Where Chromium is: as named, on the PATH, or Playwright's own."""
    named = os.environ.get(VARIABLE)
    found = [named] if named else [*map(shutil.which, _NAMES), playwright.chromium.executable_path]
    for path in found:
        if path and Path(path).is_file():
            return path
    raise NoBrowserError(NO_BROWSER)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """One Chromium, gone at the end."""
    with sync_playwright() as playwright:
        # as root its sandbox does not start; all that it opens here is our own page
        flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=find_chromium(playwright), args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Watch:
    """What goes wrong in a context: errors on the console, failed requests, dialogs."""

    def __init__(self, context: BrowserContext) -> None:
        self._found: list[str] = []
        self._allowed: list[str] = []
        context.on("console", self._console)
        context.on("weberror", lambda error: self._found.append(f"page error: {error.error}"))
        context.on("requestfailed", self._failed)
        context.on("response", self._answered)
        context.on("dialog", self._dialog)

    def allow(self, *texts: str) -> None:
        """From now on, faults with one of these texts are expected."""
        self._allowed += texts

    @property
    def faults(self) -> list[str]:
        """What went wrong and was not expected."""
        return [f for f in self._found if not any(text in f for text in self._allowed)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            place = message.location
            self._found.append(f"console {message.type}: {message.text} ({place.get('url')})")

    def _failed(self, request: Request) -> None:
        # a request that a new page or a newer request has cut off has not failed
        if "ERR_ABORTED" not in (request.failure or ""):
            self._found.append(f"request: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self._found.append(f"answer {response.status}: {response.url}")

    def _dialog(self, dialog: Dialog) -> None:
        self._found.append(f"a dialog opened: {dialog.message}")
        dialog.dismiss()


def check_access(page: Page) -> None:
    """No serious fault for people who use a keyboard, a screen reader or other colours.

    Looked at as it is, and its colours in the other scheme, light or dark, too.
    """
    grave = _grave_faults(page)
    scheme, other = ("dark", "light") if page.evaluate(_DARK) else ("light", "dark")
    page.emulate_media(color_scheme=other)  # type: ignore[arg-type]
    grave += [f"{other}: {fault}" for fault in _grave_faults(page, _COLOURS)]
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert not grave, "\n".join([page.url, *grave])


def _grave_faults(page: Page, options: dict[str, Any] = _ALL) -> list[str]:
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for fault in found
        if fault["impact"] in _GRAVE
        for node in fault["nodes"][:3]
    ]


def main() -> None:
    """Say where Chromium is; 1 if it is not, or does not start."""
    try:
        with open_browser() as browser:
            sys.stdout.write(f"Chromium {browser.version}\n")
    except (NoBrowserError, Error) as error:
        sys.exit(str(error).splitlines()[0])


if __name__ == "__main__":
    main()
