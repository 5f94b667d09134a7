"""The page Getting started, typed word for word by somebody who does nothing else: one shell, in an empty folder.

Every command of its console blocks is typed in order into one bash, as it stands there; a file is written where the
page says so, with the text that it shows. What comes out is compared with the page. The commands of SKIPPED are not
typed: each says why, and there are no others.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from consoles import Step, file_of, matches, steps
from pages import ROOT, Block, blocks, generated

PAGE = ROOT / "docs/guide/getting-started.md"
SKIPPED = {
    "pip install .": "wants a package index; the agac that is typed below is what it installs, from this very tree",
    "agac run -a reviews --model openai/gpt-5.4-mini --limit 3": "asks a real provider, with the reader's key",
}
SHOWN = {
    block for match in generated(PAGE.read_text("utf-8")) for block in re.findall(r"```\w+\n(.*?)\n```", match[2], re.S)
}
"""Files that are there already: the page shows them, and tells nobody to write them."""
SECRET = re.compile(r"API_KEY|TOKEN|PROXY|AGAC|VIRTUAL_ENV|PYTHON", re.IGNORECASE)
END = "--- end of output"


class Typist:
    """One bash that is told one thing after the other, and what it answers."""

    def __init__(self, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not SECRET.search(name)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self.folder = folder
        self.bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=folder, env={**kept, "PATH": path, "HOME": str(folder), "COLUMNS": "100"},
            text=True,
        )  # fmt: skip

    def type(self, words: str) -> tuple[int, list[str]]:
        """Types a line (or a few), and waits until it was done: the exit code, and the lines that came."""
        assert self.bash.stdin is not None
        assert self.bash.stdout is not None
        self.bash.stdin.write(f"{words}\nprintf '%s %s\\n' '{END}' $?\n")
        self.bash.stdin.flush()
        found: list[str] = []
        for line in self.bash.stdout:
            before, mark, code = line.rstrip("\n").partition(f"{END} ")
            found += [before.rstrip()] if before or not mark else []
            if mark:
                return int(code), found
        raise AssertionError(f"the shell ended with `{words}`:\n" + "\n".join(found))

    def close(self) -> None:
        """Ends the shell, as one does."""
        self.bash.communicate("exit\n", timeout=30)


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[Typist]:
    folder = tmp_path / "fresh"
    folder.mkdir()
    typist = Typist(folder)
    yield typist
    typist.close()


def consoles() -> list[Block]:
    return [block for block in blocks(PAGE) if block.language == "console"]


def typed(block: Block) -> list[Step]:
    return [step for step in steps(block) if step.command not in SKIPPED]


def test_the_page_types_to_what_it_shows(typist: Typist) -> None:
    for block in blocks(PAGE):
        if path := file_of(block):
            show_or_write(block, path, typist)
        elif block.language == "console":
            for step in typed(block):
                code, out = typist.type(step.command)
                assert code == 0, f"{block.where}: `{step.command}` ended with {code}:\n" + "\n".join(out)
                said = "\n".join(out)
                assert matches(step.shown, out, loose=False), f"{block.where}: `{step.command}` said:\n{said}"
    assert (typist.folder / "shop/output/reviews/results.jsonl").read_text("utf-8").count('"ok":true') == 6


def show_or_write(block: Block, path: str, typist: Typist) -> None:
    """A file of the page: it is what the page shows; or it is written, where the page tells the reader to."""
    text = block.text.removeprefix(f"# {path}\n")
    if block.text in SHOWN:
        assert typist.type(f"cat {path}") == (0, [line.rstrip() for line in text.split("\n")]), block.where
        return
    said = " ".join(PAGE.read_text("utf-8").partition(block.text)[0].split()[-40:])
    assert "write it into" in said, f"{block.where}: does the page tell its reader to write {path}?"
    code, out = typist.type(f"cat > {path} <<'END_OF_FILE'\n{block.text}\nEND_OF_FILE")
    assert (code, out) == (0, []), block.where


def test_only_what_cannot_be_typed_here_is_skipped() -> None:
    unmarked = [step.command for block in consoles() if "not run" not in block.directives for step in steps(block)]
    marked = [step.command for block in consoles() if "not run" in block.directives for step in steps(block)]
    assert sorted(marked) == sorted(SKIPPED)
    assert not SKIPPED.keys() & set(unmarked)
    assert len(unmarked) >= 8
    commands = [step.command for block in consoles() for step in steps(block)]
    assert (commands[0], commands[1:4]) == ("pip install .", ["agac init shop", "cd shop", "agac validate"])
    assert any("--model openai/" in command for command in commands)


def test_the_command_that_is_typed_is_the_one_that_pip_installed() -> None:
    script = shutil.which("agac", path=str(Path(sys.executable).parent))
    assert script is not None, "agac is not installed in this environment: pip install -e '.[dev]'"
    program = "import agac; print(agac.__file__)"
    where = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert Path(where.strip()).parent == ROOT / "agac"
