"""The site: built strictly, then read in a real browser. `make docs-test` installs what it needs."""

import functools
import http.server
import importlib.util
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="no mkdocs; run 'make docs-test'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    typed = ROOT / "build" / "typed" / "eblvm"  # as the Makefile makes it
    typed.mkdir(parents=True, exist_ok=True)
    (typed / "__init__.py").touch()
    for name in ("engine", "kernels", "bench"):
        if not (typed / name).exists():
            (typed / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> list[str]:
    """The addresses of the navigation, and a few of the repository's files."""
    home = (site / "index.html").read_text()
    links = re.findall(r'<a href="([^":#]+)" class="md-nav__link', home)
    files = ["source/engine/methods/bism.py/", "source/kernels/grbm/", "source/CONTRIBUTING/"]
    return [f"/{address}".replace("/./", "/") for address in dict.fromkeys([*links, *files])]


def test_every_page_of_the_folder_is_in_the_navigation(site: Path) -> None:
    markdown = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    written = {str(page) for page in markdown if page.parts[0] != "templates"}
    assert len(written) > 25
    for page in written:
        address = f"/{page.removesuffix('.md').removesuffix('index')}".rstrip("/") + "/"
        assert address in [*pages(site), "/"], page


def test_the_index_of_the_search_holds_the_pages_and_not_the_sources(site: Path) -> None:
    places = {
        entry["location"].partition("#")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert {"start/", "mathematics/bism/", "tutorials/mnist/"} <= places
    assert not [place for place in places if place.startswith("source/")]


class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: object, told: queue.Queue, addresses: list[str], **options: object):
        self.told, self.addresses = told, addresses
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        own = {
            "/visit": (Path(__file__).parent / "visit.html").read_bytes(),
            "/pages": json.dumps(self.addresses).encode(),
        }
        if self.path not in own:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path == "/visit" else "application/json")
        self.end_headers()
        self.wfile.write(own[self.path])

    def do_POST(self) -> None:
        self.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def reader(site: Path) -> Iterator[tuple[str, queue.Queue]]:
    """An address that visits the site, and where it tells what it saw."""
    told: queue.Queue = queue.Queue()
    handler = functools.partial(Handler, told=told, addresses=pages(site), directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", told
        server.shutdown()
        thread.join()


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
def test_the_site_in_a_browser(reader: tuple[str, queue.Queue], tmp_path: Path) -> None:
    """Every page of the navigation loads whole, formulas are drawn, a click leads on, the search finds."""
    address, told = reader
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    log = tmp_path / "log"
    with log.open("w") as file:
        command = [
            BROWSER,
            *options,
            f"--user-data-dir={tmp_path / 'profile'}",
            "--remote-debugging-port=0",
            f"{address}/visit",
        ]
        browser = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            seen = told.get(timeout=240)
        finally:
            browser.terminate()
            browser.wait(30)
    assert not [line for line in log.read_text().splitlines() if "CONSOLE" in line]
    assert seen["problems"] == []
    assert len(seen["pages"]) > 25
    for place, page in seen["pages"].items():
        assert page["heading"], place
        assert "404" not in page["title"], place
        assert (page["undrawn"], page["raw"], page["pictures"], page["foreign"]) == (0, 0, [], []), place
    assert seen["pages"]["/mathematics/bism/"]["formulas"] > 20
    assert any("/mathematics/" in place for place in seen["found"])
