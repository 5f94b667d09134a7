"""A project of real files in a temporary folder, written and loaded by the tests of `agac.spec`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agac.core.errors import Problem
from agac.spec.loader import in_order, load_project, load_workflow, workflow_names
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.workflow import Workflow, WrittenStage

GOOD_WORKFLOW = """\
input: {path: data/reviews.csv, id_field: id}
stages:
  - name: classify
    prompt: "Review: ${review}"
"""


def load_all(root: Path, env: Mapping[str, str]) -> tuple[list[Workflow], list[Problem]]:
    """Every workflow of a project, with every problem of every file."""
    project, problems = load_project(root, env)
    workflows: list[Workflow] = []
    for name in workflow_names(project) if project else ():
        assert project is not None
        workflow, found = load_workflow(project, name)
        problems += found
        workflows += [workflow] if workflow else []
    return workflows, in_order(problems)


class Tree:
    """The files of one project; starts with an agac.yml, an input file and nothing else."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env: Mapping[str, str] = {}
        self.write("agac.yml", "defaults: {model: simulator/small}\n")
        self.write("data/reviews.csv", "id,review\n1,fine\n")

    def write(self, path: str, content: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return file

    def project(self) -> ProjectSpec:
        project, problems = load_project(self.root, self.env)
        assert project is not None, list(map(str, problems))
        assert not problems, list(map(str, problems))
        return project

    def load(
        self, text: str | None = None, overrides: Overrides | None = None
    ) -> tuple[Workflow | None, list[Problem]]:
        if text is not None:
            self.write("workflows/w.yml", text)
        return load_workflow(self.project(), "w", overrides)

    def workflow(self, text: str | None = None, overrides: Overrides | None = None) -> Workflow:
        workflow, problems = self.load(text, overrides)
        assert workflow is not None, list(map(str, problems))
        return workflow

    def stages(self, *written: str, head: str = "") -> Sequence[WrittenStage]:
        """The stages of a workflow, each a YAML flow mapping; nothing is wrong with it."""
        lines = "".join(f"  - {one}\n" for one in written)
        workflow, problems = self.load(f"{head}input: {{path: data/reviews.csv}}\nstages:\n{lines}")
        assert workflow is not None, list(map(str, problems))
        assert not problems, list(map(str, problems))
        return workflow.stages

    def stage(self, yaml: str, *, head: str = "") -> WrittenStage:
        """The only stage of a workflow that has this YAML flow mapping as its stage."""
        return self.stages(yaml, head=head)[0]

    def problems(self, text: str | None = None) -> list[str]:
        """Everything that loading the whole project says, as users see it."""
        if text is not None:
            self.write("workflows/w.yml", text)
        return [str(problem) for problem in load_all(self.root, self.env)[1]]

    def stage_problems(self, yaml: str, head: str = "") -> list[str]:
        return self.problems(f"{head}input: {{path: data/reviews.csv}}\nstages:\n  - {yaml}\n")
