"""The picture of the compare page in the docs, of an index that is there: `make screenshot INDEX=osn-demo QUERY="…"`.

Needs Playwright and Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "compare-page.png"


def main(index: str, query: str, engines: str) -> None:
    osn = Path(sys.executable).with_name("osn")
    asked = [osn, "ui", index, "--port", "0", "--query", query, "--engines", engines]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            address = server.stdout.readline().strip() if server.stdout else ""
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1000, "height": 740})
            page.goto(address)
            page.locator(".hit").first.hover()
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=PICTURE)
            browser.close()
        finally:
            server.terminate()
    print(f"wrote {PICTURE}, {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
