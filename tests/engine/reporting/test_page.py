"""`eblvm report` and `eblvm serve`: the page in a real browser, and what the server answers."""

import html
import http.client
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from eblvm.engine.cli import main
from eblvm.engine.reporting.page import collect, page, thinned
from eblvm.engine.reporting.server import server

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
# Runs in the page after its own script: what a reader does and sees, written into the document.
VISIT = """
<script>
const cells = column => [...document.querySelectorAll("table")[0].querySelectorAll("tbody tr")]
  .map(row => row.children[column].textContent);
const head = document.querySelectorAll("table")[0].querySelectorAll("th");
const seen = {errors: window.problems, before: cells(7)};
head[7].click(); seen.up = cells(7); head[7].click(); seen.down = cells(7);
seen.charts = [...document.querySelectorAll("figure[data-chart]")].map(f => [f.dataset.chart,
  f.querySelectorAll("path.curve").length, f.querySelectorAll("path.curve")[0].getAttribute("d").length]);
const svg = document.querySelector("figure[data-chart] svg"), box = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width * 0.9, clientY: box.top + 20}));
seen.hover = document.querySelector("figure[data-chart] .value").textContent;
const slider = document.getElementById("smoothing");
const path = () => svg.querySelector("path.curve:not(.raw)").getAttribute("d");
const rough = path(); slider.value = 0.98; slider.dispatchEvent(new Event("input")); seen.smoother = path() !== rough;
seen.pictures = [...document.images].map(i => i.complete && i.naturalWidth > 0);
seen.tables = [...document.querySelectorAll("table")].map(t => [[...t.querySelectorAll("th")].map(h => h.textContent),
  t.querySelector("tbody tr").children.length]);
seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.body.append(Object.assign(document.createElement("pre"), {id: "seen", textContent: JSON.stringify(seen)}));
</script>
"""
CATCH = "<script>window.problems = []; window.onerror = (...all) => { window.problems.push(String(all[0])); };</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluated runs, one with a name that HTML could trip over, and a sweep."""
    folder = tmp_path_factory.mktemp("pages")
    options = "--steps 120 --log-every 2 --validations 4 --preview-every 60".split()
    for name, more in (("dsm", ["--method", "dsm"]), ("<b>&quot;</script>", ["--method", "dsm", "--lr", "1e-2"])):
        assert main(["train", "checkerboard", *options, *more, "--out", str(folder / name.replace("/", "-"))]) == 0
    for path in folder.glob("*/stats.jsonl"):  # a constant, which averages leave by a rounding error
        rows = [json.loads(line) | {"memory_mib": 1234.7} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", str(folder / "dsm")]) == 0
    sweep = (
        "sweep checkerboard --method dsm --replicas 2 --lr 1e-3,1e-2 --steps 20 --log-every 5 --validations 2".split()
    )
    assert main([*sweep, "--out", str(folder / "sweep")]) == 0
    assert main(["eval", str(folder / "sweep")]) == 0
    return folder


def test_a_page_holds_everything_and_asks_the_network_for_nothing(runs: Path, capsys) -> None:
    assert main(["report", str(runs / "dsm")]) == 0
    assert "open " in capsys.readouterr().out
    text = (runs / "dsm" / "report.html").read_text()
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!data:|#)", text)
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv|https?://[^\s\"]*pytorch[^\s\"]*", "", text)
    found = collect(runs / "dsm")
    assert found["command"].startswith("eblvm train checkerboard --method dsm")
    assert {"test_log_likelihood", "auroc_uniform"} <= set(found["figures"])
    assert any("density of both sets" in p["title"] for p in found["pictures"])
    rows = collect(runs / "sweep")
    place, evaluated = rows["row_columns"].index("auroc_uniform"), json.loads((runs / "sweep/eval.json").read_text())
    assert [row[place] for row in rows["rows"]] == [row["auroc_uniform"] for row in evaluated["replicas"]]
    assert len(rows["rows"]) == 4
    assert main(["report", str(runs / "nowhere")]) == 2


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    points = [[i, float(i)] for i in range(5001)]
    found = thinned(points)
    assert len(found) <= 802
    assert (found[0], found[-1]) == (points[0], points[-1])


def visit(text: str, folder: Path, size: str = "1280,900") -> dict:
    """What a browser shows of a page, by VISIT."""
    file = folder / "visited.html"
    file.write_text(text.replace("<head>", "<head>" + CATCH, 1).replace("</body>", VISIT + "</body>"))
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={size}"]
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [BROWSER, *options, profile, "--enable-logging=stderr", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-500:] + done.stderr[-500:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_in_a_browser(runs: Path, tmp_path: Path) -> None:
    """Charts are drawn, hovering reads them, smoothing redraws, a click sorts, nothing is wider than a phone."""
    folders = sorted(p for p in runs.iterdir() if p.name != "sweep")
    seen = visit(page([collect(f) for f in folders]), tmp_path)
    assert seen["errors"] == []
    drawn = {title: (curves, length) for title, curves, length in seen["charts"]}
    assert {"training loss", "validation loss", "learning rate", "samples per second"} <= set(drawn)
    assert drawn["training loss"][0] == 4  # of two runs, raw and smoothed
    assert all(length > 20 for _, length in drawn.values())
    values = [float(x) for x in seen["up"]]
    assert values == sorted(values)
    assert seen["down"] == seen["up"][::-1]
    assert re.match(r"step \d+: .*dsm -?\d", seen["hover"])
    assert seen["smoother"] is True
    assert seen["pictures"]
    assert all(seen["pictures"])
    phone = visit(page([collect(runs / "dsm"), collect(runs / "sweep")]), tmp_path, "400,800")
    assert phone["errors"] == []
    assert all(len(heads) == cells for heads, cells in phone["tables"])
    (replicas,) = (heads for heads, _ in phone["tables"] if "replica" in heads)
    assert replicas[:4] == ["run", "replica", "seed", "lr"]
    assert "auroc_uniform" in replicas
    assert phone["wide"] <= 0


@pytest.fixture
def port(runs: Path) -> Iterator[int]:
    with server(runs, 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.server_address[1]
        serving.shutdown()
        thread.join()


def ask(port: int, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_server_shows_runs_and_writes_nothing(port: int, runs: Path) -> None:
    before = sorted(runs.rglob("*"))
    status, text = ask(port, "/")
    assert status == 200
    assert "<b>" not in text
    assert quote("<b>&quot;<-script>", safe="") in text
    status, text = ask(port, "/run?run=dsm&run=sweep")
    assert status == 200
    assert "/data?run=dsm&run=sweep" in text
    status, text = ask(port, "/data?run=dsm")
    assert json.loads(text)[0]["step"] == 120
    assert ask(port, "/run?run=..%2F..%2Fetc")[0] == 404
    assert ask(port, "/../etc/passwd")[0] == 404
    assert ask(port, "/", host="evil.example:80")[0] == 403
    assert ask(port, "/", method="POST")[0] == 501
    assert sorted(runs.rglob("*")) == before
