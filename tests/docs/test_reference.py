"""The reference says what the program does: it is made from it, and it is complete."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from generate import all_pages, made_anew
from pages import ROOT
from reference import SECTIONS, helps

from agac.cli.commands import LazyGroup
from agac.cli.main import cli
from agac.core.errors import ErrorType, ExitCode
from agac.core.types import Outcome
from agac.spec.file_model import FileModel
from agac.store.rows import State

REFERENCE = ROOT / "docs/reference"


def read(path: Path) -> str:
    return path.read_text("utf-8")


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = read(page)
    assert made_anew(text).split("\n") == text.split("\n"), "run: python docs/generate.py"


def test_every_command_and_every_flag_has_help_and_is_documented() -> None:
    text = read(REFERENCE / "cli.md")
    commands = list(walk(cli, "agac"))
    assert [path for path, _ in commands] == [path for path, _ in helps()]
    for path, command in commands:
        assert f"\n## {path}\n" in text
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{path} {parameter.name}"
                assert all(flag in text for flag in parameter.opts), f"{path} {parameter.name}"
    assert isinstance(cli, LazyGroup)
    values, switches = (
        ["--project-dir", "--shard", "--log-level", "--log-file", "--log-format"],
        ["-v", "--quiet", "-q", "--no-color"],
    )
    assert cli.global_flags() == dict.fromkeys(values, True) | dict.fromkeys(switches, False)


def walk(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += walk(inner, f"{path} {name}")
    return found


def test_every_kind_of_mapping_has_a_section_and_every_key_a_meaning() -> None:
    found = {model for model in kinds(FileModel) if model.__module__.startswith("agac.")}
    assert {model for model in found if model in SECTIONS or not model.__subclasses__()} == set(SECTIONS)
    text = read(REFERENCE / "workflow.md")
    titles = re.findall(r"^## (.*)$", text, re.M)
    headings = {re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(SECTIONS.values()) <= headings
    for model in SECTIONS:
        for key in model.model_fields:
            assert re.search(rf"^\| `{key}` \| .+ \| .* \| \S.+ \|$", text, re.M), f"{model.__name__}.{key}"


def kinds(base: type[FileModel]) -> Iterator[type[FileModel]]:
    for model in base.__subclasses__():
        yield model
        yield from kinds(model)


def test_every_error_exit_code_state_and_outcome_is_explained() -> None:
    errors, store = read(REFERENCE / "errors.md"), read(REFERENCE / "store.md")
    for kind in ErrorType:
        assert re.search(rf"^\| `{kind}` \| .{{10,}} \| .{{10,}} \|$", errors, re.M), kind
    for code in ExitCode:
        assert re.search(rf"^\| {int(code)} \| .+ \| .{{10,}} \|", errors, re.M), code
    for state in State:
        assert f"| {int(state)} | {state.name.lower()} |" in store
    for outcome in Outcome:
        assert f"`{outcome}`" in store


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    names = {re.split(r"[<>=~! ]", line)[0] for line in project["dependencies"]}
    reasons = read(ROOT / "docs/decisions/0001-dependencies.md")
    assert len(names) <= 15
    assert set(re.findall(r"^\| ([a-z-]+) \| .{10,} \|", reasons, re.M)) - {"package"} == names


def test_every_folder_of_the_package_is_in_the_architecture() -> None:
    text = read(ROOT / "docs/architecture.md")
    folders = {path.parent.name for path in (ROOT / "agac").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `agac/(\w+)/`", text, re.M)) == folders
    for module in re.findall(r"`((?:engine|plan|spec|store|providers|data|core|api)/\w+)`", text):
        assert (ROOT / "agac" / f"{module}.py").is_file(), module
