# Copyright The AlterShield Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Draws commands of a page, with what they print, as SVG: screens.py PAGE DIRECTORY.

The blocks of the pages are what the commands print: TestCommands runs them on a control plane and compares. So a screen shows
what the program prints. A line `<!-- screen NAME -->` before a block makes NAME.svg of it.
"""

import io
import pathlib
import re
import sys
import textwrap

from rich.console import Console
from rich.text import Text

SCREEN = re.compile(r"<!-- screen (?P<name>[a-z-]+) -->\n\n(?P<block>(?:    .*\n|\n(?=    ))+)")
WIDTH = 112


def draw(name, block):
    """Returns the SVG of a block."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for line in textwrap.dedent(block).splitlines():
        text = Text(line)
        text.stylize("bold", 0, len(line) if line.startswith("$ ") else 0)
        text.highlight_regex(r"^\$", "green")
        text.highlight_regex(r"\b(Suspend|Failed|failed|denied|blocked|unpass|error)\b", "red")
        text.highlight_regex(r"\b(Success|passed|Running)\b", "green")
        console.print(text, soft_wrap=False)
    return console.export_svg(title="altershield-operator", unique_id=name)


def main(page, directory):
    """Writes the screens of a page into a directory."""
    found = 0
    for match in SCREEN.finditer(pathlib.Path(page).read_text(encoding="utf-8")):
        path = pathlib.Path(directory) / (match["name"] + ".svg")
        path.parent.mkdir(parents=True, exist_ok=True)
        # The fonts of the terminal's reader: a page loads nothing from elsewhere.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", draw(match["name"], match["block"]), flags=re.DOTALL)
        path.write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), encoding="utf-8")
        found += 1
    if not found:
        sys.exit(f"{page}: no block is marked by <!-- screen NAME -->")


if __name__ == "__main__":
    main(*sys.argv[1:])
