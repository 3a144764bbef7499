"""A journey: commands one after the other in a folder, and every command that one of them prints as "next"."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from eblvm.engine.cli import main

SHAPES = ("circle", "cross", "square")


class Journey:
    """Commands as a user types them in `folder`. `follow` runs what they have printed as "next", as it is printed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.typed: set[str] = set()
        self.printed: dict[str, str] = {}  # commands after "next: ", by the command that printed each

    def run(self, line: str, code: int = 0) -> str:
        """Run a command and return what it printed."""
        self.typed.add(line)
        said, errors = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            got = main(shlex.split(line)[1:])
        assert got == code, f"{line}: exit code {got}; {errors.getvalue()[-2000:]}"
        if code:
            return errors.getvalue()
        for text in said.getvalue().splitlines():
            if text.startswith("next: "):
                self.printed |= dict.fromkeys(commands(text.removeprefix("next: ")), line)
        return said.getvalue()

    def follow(self) -> None:
        """Run every printed command that was not typed; those that they print in turn are of the same kinds."""
        for line, by in {line: by for line, by in self.printed.items() if line not in self.typed}.items():
            if line.startswith("eblvm "):
                self.run(line)
                continue
            environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            done = subprocess.run(line, shell=True, cwd=self.folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{by} printed {line}: {done.stderr}"


def commands(text: str) -> list[str]:
    """The commands of a line, which a shell would run one after the other."""
    parts: list[list[str]] = [[]]
    lexer = shlex.shlex(text, posix=False, punctuation_chars=";")
    lexer.whitespace_split = True
    for word in lexer:
        if word == ";":
            parts.append([])
        else:
            parts[-1].append(word)
    return [" ".join(words) for words in parts]


def draw_shapes(folder: Path, count: int, size: tuple[int, int] = (20, 16)) -> None:
    """Write `count` pictures of each shape, in a subfolder per shape."""
    noise = np.random.default_rng(0)
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for i in range(count):
            dark, light = (tuple(noise.integers(low, low + 60, 3).tolist()) for low in (0, 180))
            picture = Image.new("RGB", size, dark)
            draw, r = ImageDraw.Draw(picture), int(noise.integers(3, 6))
            x, y = (int(noise.integers(r, n - r)) for n in size)
            if shape == "circle":
                draw.ellipse((x - r, y - r, x + r, y + r), fill=light)
            elif shape == "square":
                draw.rectangle((x - r, y - r, x + r, y + r), fill=light)
            else:
                draw.line((x - r, y - r, x + r, y + r), fill=light, width=2)
                draw.line((x - r, y + r, x + r, y - r), fill=light, width=2)
            picture.save(folder / shape / f"{i:04}.png")
