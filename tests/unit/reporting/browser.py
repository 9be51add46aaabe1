"""A real headless Chromium, without a network, for tests of pages.

``python -m tests.unit.reporting.browser`` fetches one where the machine has none; `make test` does so.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

#: What Chromium is called on the path of common systems. Where none of them is, Playwright's is used.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the machine's Chromium, or Playwright's. Where there is neither this fails: no page was checked."""
    with sync_playwright() as playwright:
        # Containers run as root and have a small /dev/shm. The pages are our own, so no sandbox is missed.
        browser = playwright.chromium.launch(
            executable_path=_on_the_machine(), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


def _on_the_machine() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


def _is_there() -> bool:
    if _on_the_machine() is not None:
        return True
    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path).exists()


if __name__ == "__main__":
    install = [sys.executable, "-m", "playwright", "install", "chromium"]
    if not _is_there() and subprocess.run(install, check=False).returncode:
        sys.exit(
            "missing: Chromium, for tests of the report\n    remedy: install it (Debian: apt-get install chromium)"
        )
