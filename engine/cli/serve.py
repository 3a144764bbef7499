"""`eblvm serve`: runs as live pages in a browser on this machine."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser
from eblvm.engine.reporting.server import LOOPBACK, server

EXAMPLES = ("eblvm serve runs", "eblvm serve runs --port 9000")


def main(argv: list[str]) -> None:
    parser = Parser("serve", "The runs of a folder as live pages: to this machine only, read-only.", EXAMPLES)
    parser.add_argument("dir", metavar="RUNS", nargs="?", default="runs", help="folder of runs (runs)")
    parser.add_argument("--port", type=int, default=8642, help="of the address (8642); 0 is any free one")
    arguments = parser.parse(argv)
    with server(Path(arguments.dir), arguments.port) as serving:
        print(f"http://{LOOPBACK}:{serving.server_address[1]}/ shows the runs in {arguments.dir}; Ctrl+C ends it")
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            print("ended")
