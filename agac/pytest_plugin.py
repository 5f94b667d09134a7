"""For pytest: the fixture `agac_workflow`. Nothing else of agac is loaded before a test uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from agac.api.offline_run import TriedRun


@pytest.fixture
def agac_workflow(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[..., TriedRun]:
    """`agac_workflow("reviews", rows=[…])` runs a workflow of the project in pytest's root folder
    (or in `project`) offline on rows and gives its `rows`, `calls` and `report`. `replies` are as
    in files of tests; None: the simulator answers. Further keys are options, as `vars`,
    `tools_mode` (stub) and `tool_stubs`."""

    def run(
        workflow: str, rows: Sequence[Mapping[str, Any]], *, project: Any = None, **options: Any
    ) -> TriedRun:
        from agac.api.offline_run import try_replies

        root = project or pytestconfig.rootpath
        state = tmp_path_factory.mktemp("agac")
        return try_replies(root, workflow, list(rows), state, **options)

    return run
