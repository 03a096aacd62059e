"""A headless Chromium for tests of the console, which notes whatever a page complains about."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.support.needs import find_tool

CHROMIUM = find_tool("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
PICTURES = Path(__file__).parents[1] / "browser" / "build"
TIMEOUT_MS = 15_000
expect.set_options(timeout=TIMEOUT_MS)
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


class Watched:
    """A page, and what went wrong on it: errors of scripts, of the console, and violations of the content policy."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on("requestfailed", self._note_failure)
        page.set_default_timeout(TIMEOUT_MS)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _note_failure(self, request: Request) -> None:
        if "net::ERR_ABORTED" not in (request.failure or ""):  # a page that is left ends its requests
            self.complaints.append(f"{request.method} {request.url}: {request.failure}")

    def picture(self, name: str, *, whole: bool = True) -> None:
        """Keep a picture among the build output, for a person to look at."""
        PICTURES.mkdir(exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=whole)

    def barriers(self) -> list[str]:
        """What keeps people with disabilities from using the page, by the rules of axe."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]
        ]


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser without any state."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def visiting(browser: Browser, base: str, *, phone: bool = False, dark: bool = False) -> Iterator[Watched]:
    """A tab of a browser of its own, on which the paths of a console can be opened."""
    context: BrowserContext = browser.new_context(
        base_url=base,
        viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]
        has_touch=phone,
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        timezone_id="Europe/Berlin",
    )
    try:
        yield Watched(context.new_page())
    finally:
        context.close()
