"""The project as its files describe it (`ProjectSpec`), and what the command line changes for one
invocation (`Overrides`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from agac.spec.paths import Fetch, ProjectPaths, RemoteContent, fetch_nothing
from agac.spec.rules import Budget, RunMode
from agac.spec.text_files import PlacedText
from agac.spec.tools import ToolsMode

if TYPE_CHECKING:
    from agac.spec.project_models import ProjectFile
    from agac.spec.yaml import Document

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """A project: its root, the keys of `agac.yml`, and how its files are read."""

    root: Path
    file: ProjectFile
    """The keys of `agac.yml`. Variables are filled in unless they are secrets."""
    paths: ProjectPaths
    document: Document
    env: Mapping[str, str] = field(repr=False)
    """The values of `${VAR}`. It holds secrets, so it is never shown."""
    fetch: Fetch = field(default=fetch_nothing, repr=False)
    """Gets content of other machines."""
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The tools that a program gave, by their source."""
    rows_root: Path | None = None
    """The folder with the inputs that the root of another version lacks."""
    read: dict[Hashable, Any] | None = field(default=None, repr=False, compare=False)
    """What `once` has made so far; None: it keeps nothing."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what `make` gives. It is called once for each key while one command loads
        workflows."""
        if self.read is None:
            return make()
        if key not in self.read:
            self.read[key] = make()
        return cast("T", self.read[key])

    def reading_once(self) -> ProjectSpec:
        """Returns the project for a time in which its files do not change: each is read once."""
        return self if self.read is not None else replace(self, read={})

    def noting(self) -> tuple[ProjectSpec, list[RemoteContent]]:
        """Returns the project for loading one workflow, and a list that receives what the workflow
        fetches from other machines."""
        noted: list[RemoteContent] = []

        def fetch(reference: str, what: str) -> tuple[RemoteContent, ...]:
            fetched = tuple(replace(content, what=what) for content in self.fetch(reference, what))
            noted.extend(content for content in fetched if content.hash)
            return fetched

        return replace(self.reading_once(), fetch=fetch), noted

    def elsewhere(self) -> ProjectSpec | None:
        """Returns the project at `rows_root`, where the inputs are that its root lacks."""
        root = self.rows_root
        if root is None:
            return None
        names = ("workflows", "agentcards", "schemas", "output")
        folders = {name: root / getattr(self.paths, name).relative_to(self.root) for name in names}
        return replace(self, root=root, paths=ProjectPaths(**folders), rows_root=None)

    def shown(self, path: Path) -> str:
        """Returns `path` as users see it: relative to the project root if it is inside."""
        if path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return str(path)


class StageChange(NamedTuple):
    """Another model, or another prompt, that is tried for one stage instead of its file's."""

    stage: str
    model: str | None
    prompt: PlacedText | None


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line changes for one invocation."""

    vars: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    concurrency: int | None = None
    input: Path | str | None = None
    """Any path, pattern or database, or `-`: the user typed it."""
    sql: str | None = None
    output: str | None = None
    """A folder from which no rows are read."""
    budget: Budget | None = None
    """Replaces the budgets of the project and the workflow."""
    max_errors: int | None = None
    run_mode: RunMode | None = None
    backend: str | None = None
    tools_mode: ToolsMode | None = None
    tool_stubs: Mapping[str, Any] | str | None = None
    """Stand-ins by tool, or a file of them."""
    replay: int | None = None
    """The run whose tool results are taken."""
    max_turns: int | None = None
    trust_card: bool = False
    change: StageChange | None = None
    dry: bool = False
    """True if no model is asked, so that what servers offer may be unknown."""
