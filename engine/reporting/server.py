"""`eblvm serve`: the runs of a folder as live pages, to this machine only and read-only."""

from __future__ import annotations

import html
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from eblvm.engine.errors import UserError
from eblvm.engine.reporting.page import HERE, collect, page
from eblvm.engine.runs import summary

LOOPBACK = "127.0.0.1"


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of the runs below `folder`; port 0 is any free one. It answers GET, on the loopback address."""
    summary.runs_in(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").rpartition(":")[0] not in (LOOPBACK, "localhost"):
                return self.send_error(403, "this server answers to localhost only")
            address = urlsplit(self.path)
            asked = parse_qs(address.query).get("run", [])
            runs = {str(path.relative_to(folder)): path for path in summary.runs_in(folder)}
            try:
                chosen = {name: runs[name] for name in asked}
                if address.path == "/" and not asked:
                    return self.answer("text/html", overview(folder, runs))
                if address.path == "/run" and chosen:
                    live = "/data?" + "&".join(f"run={quote(name, safe='')}" for name in asked)
                    return self.answer("text/html", page([collect(p, n) for n, p in chosen.items()], live))
                if address.path == "/data" and chosen:
                    return self.answer("application/json", json.dumps([collect(p, n) for n, p in chosen.items()]))
            except KeyError:
                return self.send_error(404, "there is no such run")
            except UserError as error:
                return self.send_error(500, str(error).encode("ascii", "replace").decode())
            self.send_error(404, "there is no such page")

        def answer(self, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror}); give another --port") from None


def overview(folder: Path, runs: dict[str, Path]) -> str:
    """The list of runs, the most recently changed first, with a link to each and to all of them together."""
    rows = []
    for name, path in reversed(runs.items()):
        run = summary.summarise(path)
        best = "-" if run.best is None else f"{run.best[0]:.5g}"
        cells = (run.config.recipe, run.config.method.kind, f"{run.step}/{run.steps}", run.state, best)
        link = f'<a href="/run?run={quote(name, safe="")}">{html.escape(name)}</a>'
        rows.append(f"<tr><td>{link}</td>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
    everything = "/run?" + "&".join(f"run={quote(name, safe='')}" for name in runs)
    titles = "".join(f"<th>{t}</th>" for t in ("run", "recipe", "method", "step", "state", "best validation"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>eblvm runs</title><style>{(HERE / 'report.css').read_text()}</style></head><body><main>"
        f"<h1>Runs in {html.escape(str(folder))}</h1><div class=scroll><table><thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f'<p><a href="{everything}">all together</a></p></main></body></html>'
    )
