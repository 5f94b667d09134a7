"""Paths: the project's root, paths inside it, where results go, files of a pattern.
`project_files` opens them."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from pathlib import Path, PurePosixPath
from secrets import token_hex

from agac.core.errors import Problem, UsageError, Where, did_you_mean
from agac.core.state_files import make_folder, opener

# Finding the project: light enough for commands that only read the store.

PROJECT_FILE = "agac.yml"
STORE = Path(".agac") / "agac.db"
YAML_SUFFIXES = (".yml", ".yaml")
STATE_FOLDERS = (".agac", ".git")
_HOME = Path(".agac") / "home"
_log = logging.getLogger("agac")


def find_project(start: Path, explicit: Path | None = None, *, bare: bool = False) -> Path:
    """Returns the project's root: `explicit` when given, else the nearest folder with an agac.yml
    from `start` upward. Where there is none, it is `start` itself if it may be `bare`, else the
    nearest folder with a store: what was run there can be read from below, and nothing new is put
    into it. Raises `UsageError` when there is none."""
    if explicit is not None:
        if any((explicit / file).is_file() for file in (PROJECT_FILE, STORE)) or (
            bare and explicit.is_dir()
        ):
            return explicit.resolve()
        raise UsageError(
            f"{explicit} has no {PROJECT_FILE}",
            remedy=f"Run `agac init {explicit}` to make a project.",
        )
    here = start.resolve()
    for file in (PROJECT_FILE,) if bare else (PROJECT_FILE, STORE):
        for folder in (here, *here.parents):
            if (folder / file).is_file() and not _is_laid(folder / file):
                return folder
    if bare:
        return here
    remedy = "Run `agac init` to make a project here, or name one with --project-dir."
    raise UsageError(f"no {PROJECT_FILE} in {here} or any folder above it", remedy=remedy)


def _is_laid(file: Path) -> bool:
    """True if another user put a project into a folder that all users can write, as /tmp: its code
    is not this user's to run. A message says so; an error would let any user keep others from
    working there."""
    if not hasattr(os, "geteuid") or not file.parent.stat().st_mode & stat.S_IWOTH:
        return False
    owner = file.stat().st_uid
    if owner in (0, os.geteuid()):
        return False
    _log.warning(
        "agac ignores %s: another user (%d) put it into a folder that all users can write. To "
        "use it all the same: --project-dir %s",
        file,
        owner,
        file.parent,
    )
    return True


def project_root(project: Path | str | None, *, bare: bool = False) -> Path:
    """Returns the root of the project that a caller names, else of the one around the current
    folder."""
    return find_project(Path.cwd(), Path(project) if project is not None else None, bare=bare)


def home_of(root: Path) -> Path:
    """Returns the folder of a project's agac.yml, .env, cards and Python: of a work dir that of the
    project it was made in."""
    link = root / _HOME
    if not link.is_file() or link.is_symlink() or (root / PROJECT_FILE).exists():
        return root  # a project has its files itself, whatever somebody put into its .agac
    return Path(link.read_text("utf-8"))


def work_dir(folder: Path, root: Path) -> Path:
    """Returns a folder for nothing but the state of jobs, made for the project at `root`. Raises
    UsageError."""
    if folder.is_dir():
        names = {path.name for path in folder.iterdir()}
    else:
        names = set()
    if not (folder / _HOME).is_file():
        if names - {_HOME.parts[0]}:
            if "manifest.json" in names:
                whose = "the work dir of another tool"
            else:
                whose = "not empty, and no work dir of agac"
            raise UsageError(
                f"--work-dir {folder} is {whose}", remedy="Name an empty folder, or a new one."
            )
        try:
            make_folder((folder / _HOME).parent)
            new = folder / _HOME.with_suffix(f".{token_hex(8)}")  # several may make it at once
            with open(new, "w", encoding="utf-8", opener=opener) as file:
                file.write(str(home_of(root)))
            new.replace(folder / _HOME)
        except OSError as error:
            raise UsageError(
                f"--work-dir {folder} cannot be made: {error.strerror}", remedy="Name another."
            ) from error
    return folder


def state_folders(root: Path) -> list[Path]:
    """Returns the folders to which nothing but state is written: of a work dir, all of it."""
    if home_of(root) == root:
        return [root / state for state in STATE_FOLDERS]
    return [root]


def is_new_place(explicit: Path | None = None) -> bool:
    """True if a job would put its state into a folder that has neither an agac.yml nor a store
    yet."""
    root = find_project(Path.cwd(), explicit, bare=True)
    return not any((root / file).is_file() for file in (PROJECT_FILE, STORE))


MAX_LENGTH = 1_000


class Refused(ValueError):
    """A value that cannot be used; the message says why and what to write instead."""


class OutsideProject(Refused):
    """A path that a file of the project may not name; the message says why and what to write
    instead."""


class Unusable(Exception):
    """A file of the project that cannot be used, or a text that names none: `problem` says where
    and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def inside(root: Path, text: str, *, base: Path | None = None) -> Path:
    """Returns the absolute path of `text` with all links followed; it need not exist. `text` is
    relative to `base` (None: the root). Raises `OutsideProject` for all that does not end inside
    `root`: `..`, absolute paths, `~`, links, NUL."""
    if "\0" in text or len(text) > MAX_LENGTH:
        raise OutsideProject("is not a path")
    if text.startswith("~") or Path(text).is_absolute():
        raise OutsideProject(
            f"{text!r} is not relative; paths are relative to the project's root and stay inside it"
        )
    try:
        real_root = root.resolve()
        path = ((base or root) / text).resolve()
        # left as it is from Python 3.13 on
        is_loop = any(part.is_symlink() for part in (path, *path.parents))
    except (
        OSError,
        RuntimeError,
    ) as error:  # a loop of links, or a name that the file system refuses
        raise OutsideProject(f"{text!r} cannot be followed: {error.__class__.__name__}") from None
    if is_loop:
        raise OutsideProject(f"{text!r} cannot be followed: its links lead in a circle")
    if not path.is_relative_to(real_root):
        raise OutsideProject(f"{text!r} leads out of the project; name a path inside it")
    return path


def is_there(path: Path) -> bool:
    """True if something has this path that is no folder: a pipe, too, which is refused where it is
    read."""
    return path.exists() and not path.is_dir()


def files_called(name: str, root: Path, folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Returns the files that `name` may mean: in `folder` with a suffix, or a path with its own.
    Raises `OutsideProject`."""
    if name.endswith(suffixes):
        candidates = [inside(root, name), inside(root, name, base=folder)]
    else:
        candidates = [inside(root, name + suffix, base=folder) for suffix in suffixes]
    return [path for path in candidates if is_there(path)]


_SECRET = re.compile(r".*\.env(rc)?|\.env\..+", re.IGNORECASE)


def secret_kind(path: Path, root: Path) -> str | None:
    """Says why the content of a resolved path is never shown: it is an environment file, or what
    agac or git keeps, in the project or in a folder of it. None if it is an ordinary file."""
    return _secret_kind(path, root.resolve())


def _secret_kind(path: Path, real: Path) -> str | None:
    """Returns the same for a `real` root, which is resolved already."""
    parts = path.relative_to(real).parts if path.is_relative_to(real) else ()
    if {part.casefold() for part in parts} & {*STATE_FOLDERS}:
        return "is agac's or git's own"
    if _SECRET.fullmatch(path.name):
        return "is an environment file"
    return None


def refuse_secret(path: Path, root: Path) -> None:
    """Raises OutsideProject for what no prompt may be told of: environment files, and what agac
    and git keep."""
    why = secret_kind(path, root)
    if why is not None:
        raise OutsideProject(
            f"{path.name!r} {why}, and is never part of a prompt; write what is meant elsewhere"
        )


def existing_file(value: str, root: Path, where: Where, *, base: Path | None = None) -> Path:
    """Returns the file of the project that `value` names, relative to `base` (the root when None).
    Raises Unusable."""
    try:
        path = inside(root, value, base=base)
        refuse_secret(path, root)
    except OutsideProject as error:
        raise Unusable(Problem(where, str(error))) from None
    if not path.is_file():
        what = f"no such file: {value!r}; {near_files(path, root)}"
        if path.exists():
            what = f"{value!r} is not a file; name a file"
        raise Unusable(Problem(where, what))
    return path


def near_files(path: Path, root: Path) -> str:
    """Suggests what was probably meant: a file with a similar name next to `path`, or what its
    folder holds."""
    real = root.resolve()
    folder = next(parent for parent in path.parents if parent.is_dir())
    known = sorted(file.relative_to(real).as_posix() for file in folder.iterdir() if file.is_file())
    return did_you_mean(
        path.relative_to(real).as_posix(), known, f"files in {folder.relative_to(real).as_posix()}/"
    )


_DEVICE = re.compile(r"(con|prn|aux|nul|com[1-9¹²³]|lpt[1-9¹²³]) *(\..*)?", re.IGNORECASE)
_NO_NAME = re.compile(r"""[<>:"|?*\\\x00-\x1f]|[. ]\Z""")


def refused_by_windows(path: str) -> list[str]:
    """Returns the parts of `path` that no file or folder of Windows can be called, by Microsoft's
    "Naming Files, Paths"."""
    return [part for part in path.split("/") if _DEVICE.fullmatch(part) or _NO_NAME.search(part)]


# Where results go.


@dataclass(frozen=True, slots=True)
class ProjectPaths:
    """The project's folders, absolute; they need not exist."""

    workflows: Path
    agentcards: Path
    schemas: Path
    output: Path


def output_folder(text: str, root: Path, paths: ProjectPaths, source: Path) -> Path:
    """Returns the folder that `--output` names, relative to the project. Raises `UsageError` when
    results may not go there."""
    try:
        folder = inside(root, text)
        refuse_folder(folder, root, paths, source)
    except Refused as error:
        raise UsageError(
            f"--output {text}: {error}", remedy="Name a folder inside the project."
        ) from None
    return folder


def refuse_folder(folder: Path, root: Path, paths: ProjectPaths, source: Path | None) -> None:
    """Results are replaced: nothing of the project's own and not its input may be in their folder.
    Raises Refused."""
    remedy = (
        f"results need a folder of their own, as {paths.output.relative_to(root).as_posix()}/NAME"
    )
    shown = folder.relative_to(root).as_posix()
    if folder == root:
        raise Refused(f"is the project's root; {remedy}")
    state = [root / name for name in STATE_FOLDERS]
    for kept in [
        paths.workflows,
        paths.agentcards,
        paths.schemas,
        *state,
        root / "data",
        root / "prompts",
    ]:
        if kept.is_relative_to(folder):
            raise Refused(
                f"{shown} holds the project's own files "
                f"({kept.relative_to(root).as_posix()}); {remedy}"
            )
    if any(map(folder.is_relative_to, state)):
        raise Refused(f"{shown} belongs to agac or git; {remedy}")
    if source is not None and source.is_relative_to(folder):
        raise Refused(f"{shown} holds the input file; {remedy}")
    if folder.exists() and not folder.is_dir():
        raise Refused(
            f"{shown} is a file, and results need a folder; move it away, or name another folder"
        )


# A database of a PostgreSQL server: its address is what libpq takes, with `${VAR}` for what stands
# in no file: a password, or all of the address.

POSTGRES = re.compile(r"postgres(?:ql)?://|\$\{\w+\}(?:[?&]|\Z)")
_ONE_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
MAX_NAME = 63  # bytes of a name: PostgreSQL cuts a longer one


def server_parts(text: str, *keys: str) -> tuple[str, str, str]:
    """Returns the address of a server's database, and what `text` says is read or written there:
    the key, one of `keys`, with all that follows it; empty where it says nothing. Raises Refused
    for a password that is written out."""
    found = re.search(rf"[?&]({'|'.join(keys)})=", text)
    address = text[: found.start()] if found else text
    if any(not _ONE_VARIABLE.fullmatch(one) for one in passwords(address)):
        raise Refused(
            "a password is written in it; write ${PGPASSWORD}, in a shell in single quotes, "
            "and set it"
        )
    if found:
        return (address, found[1], text[found.end() :])
    return (address, "", "")


def passwords(address: str) -> list[str]:
    """Returns what is in the places of passwords of a server's address, as it is written there."""
    user = address.partition("://")[2].rpartition("@")[0]
    found = re.findall(r"[?&](?:ssl)?password=([^&]*)", address)
    return [one for one in (user.partition(":")[2], *found) if one]


def server_table(name: str) -> str:
    """Returns a table of a server, `NAME` or `SCHEMA.NAME`, as SQL takes it. Raises Refused."""
    parts = name.split(".")
    if len(parts) > 2 or not all(
        part and part.isprintable() and len(part.encode()) <= MAX_NAME for part in parts
    ):
        raise Refused(f"{name!r} cannot be the name of a table; write NAME or SCHEMA.NAME")
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


# References to what lies elsewhere: `data/remote` fetches it.

SCHEMES = ("https://", "http://", "hf://", "file://")


def is_reference(text: str) -> bool:
    """True if a text names content by its address, and is not one in which an address stands."""
    return text.startswith(SCHEMES) and not any(map(str.isspace, text)) and "${" not in text


@dataclass(frozen=True, slots=True)
class RemoteContent:
    """Content that was fetched from another machine."""

    reference: str
    """What named it."""
    name: str
    """Its name in the cache."""
    hash: str
    """Identifies its bytes; empty for a file of this machine."""
    commit: str | None = None
    """The commit of its repository at that time."""
    what: str = ""
    """What it is to the workflow: `input`, `prompt of classify`."""
    path: Path = field(default=Path(), compare=False)
    """The copy on this machine."""


Fetch = Callable[[str, str], tuple[RemoteContent, ...]]
"""From a reference, and what it is for, to its content: of an input perhaps several files. Raises
Refused."""


UNTRUSTED = "text of a remote card"
"""What somebody else names, which is fetched without what logs the user in."""


def fetch_nothing(reference: str, what: str) -> tuple[RemoteContent, ...]:
    """For who reads files of the project alone."""
    raise Refused(f"{reference} is not fetched here ({what}); download it, and name the file")


# `*`, `?` and `[…]` match within a name, `**` any number of folders. As in a shell, what begins
# with a dot has to be named with its dot. `**` goes through no links; a link that leads out of the
# folder is refused, not followed. Memory is that of the largest single folder.

_SIGNS = re.compile(r"[*?\[]")
ANY_FOLDERS = "**"

Rests = set[tuple[str, ...]]
"""What is left to match of a pattern, part by part, in each of the ways in which it can go on."""


class Unmatchable(Refused):
    """A folder that cannot be searched, or a link that leads out; the message says which."""


def is_pattern(text: str) -> bool:
    """True if a path means all files of a kind."""
    return _SIGNS.search(text) is not None


def fixed_part(pattern: str) -> PurePosixPath:
    """Returns the folder in which a pattern begins to vary; of a path without signs its folder."""
    parts = PurePosixPath(pattern).parts
    fixed = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts))
    return PurePosixPath(*parts[: min(fixed, len(parts) - 1)])


def _rests(parts: Sequence[str]) -> Rests:
    """Returns a pattern, and what follows each `**` at its beginning, which also stands for no
    folder."""
    depth = next(i for i, part in enumerate(parts) if part != ANY_FOLDERS)
    return {tuple(parts[i:]) for i in range(depth + 1)}


def _start(pattern: str) -> Rests:
    """With what a search begins; `**` at the end means all files below."""
    parts = PurePosixPath(pattern).parts
    return _rests((*parts, "*") if parts[-1] == ANY_FOLDERS else parts)


def _into(rests: Rests, name: str, *, link: bool) -> Rests:
    """Returns what is left of the patterns inside the folder `name`; empty if nothing in it can
    match."""
    stay = [
        rest for rest in rests if rest[0] == ANY_FOLDERS and not link and not name.startswith(".")
    ]
    go = [rest[1:] for rest in rests if len(rest) > 1 and _fits(rest[0], name)]
    return set().union(*map(_rests, stay + go))


def _takes(rests: Rests, name: str) -> bool:
    """True if the file `name` matches."""
    return any(len(rest) == 1 and _fits(rest[0], name) for rest in rests)


def matches(pattern: str, relative: str) -> bool:
    """True if a whole path, relative to where the pattern begins, matches."""
    *folders, name = PurePosixPath(relative).parts
    rests = _start(pattern)
    for folder in folders:
        rests = _into(rests, folder, link=False)
    return _takes(rests, name)


def _fits(part: str, name: str) -> bool:
    if part == ANY_FOLDERS or (name.startswith(".") and not part.startswith(".")):
        return False
    return part == name or _regex(part)(name) is not None


@cache
def _regex(part: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(part)).match


def matching(root: Path, patterns: Sequence[str], skipped: Sequence[Path] = ()) -> Iterator[str]:
    """Yields the files below `root` that `patterns` name, relative to it with `/`: the patterns in
    their order, each one's files by name, a file that several match once. A pattern that is the
    path of a file names that file. `skipped` are folders of which nothing is taken. Raises
    Unmatchable."""
    real = root.resolve()
    for number, text in enumerate(patterns):
        found = iter((PurePosixPath(text).as_posix(),))
        if not (real / text).is_file():
            found = _below(real, "", _start(text), skipped)
        elif not (real / text).resolve().is_relative_to(real):
            raise Unmatchable(f"{text!r} leads out of {real}")
        yield from (
            path for path in found if not any(matches(before, path) for before in patterns[:number])
        )


def matching_rows(folder: Path, patterns: Sequence[str], skipped: Sequence[Path]) -> Iterator[str]:
    """Yields the files of an input below its folder, as `matching` finds them. Raises Unmatchable,
    also where one is an environment file, or a link leads to one or to what agac or git keeps."""
    real = folder.resolve()
    for name in matching(real, patterns, skipped):
        why = _secret_kind((real / name).resolve(), real)
        if why is not None:
            raise Unmatchable(
                f"{name!r} {why}, and is not read as rows; remove it or name fewer files"
            )
        yield name


def _below(root: Path, relative: str, rests: Rests, skipped: Sequence[Path]) -> Iterator[str]:
    """Yields the files of the folder `relative` (empty, or with a `/` at its end) and below that
    match what is left."""
    try:
        with os.scandir(root / relative) as found:
            entries = sorted((entry.name, entry.is_symlink()) for entry in found)
    except OSError as error:
        raise Unmatchable(
            f"the folder {relative or '.'!r} cannot be read: {error.strerror}"
        ) from error
    for name, is_link in entries:
        path = root / relative / name
        inner = f"{relative}{name}"
        below = _into(rests, name, link=is_link)
        taken = _takes(rests, name)
        if not (below or taken) or (is_link and _is_skipped(_target(path, inner, root), skipped)):
            continue
        if path.is_dir():
            if below and not _is_skipped(path, skipped):
                yield from _below(root, f"{inner}/", below, skipped)
        elif taken and (path.is_file() or is_link):
            yield inner


def _is_skipped(path: Path, skipped: Sequence[Path]) -> bool:
    return any(map(path.is_relative_to, skipped))


def _target(path: Path, relative: str, root: Path) -> Path:
    """What a link leads to. Raises Unmatchable when it lies outside."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError):
        raise Unmatchable(f"{relative!r} cannot be followed: its links lead in a circle") from None
    if not target.is_relative_to(root):
        raise Unmatchable(
            f"{relative!r} is a link that leads out of {root}; remove it or name fewer files"
        )
    return target
