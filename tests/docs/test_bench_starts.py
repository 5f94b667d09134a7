"""What a newcomer waits for is measured: a fresh clone up to its first results."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = """\
demo:
	@test "$$PIP_NO_CACHE_DIR" = 1
	@test -z "$$PYTHONPATH$$VIRTUAL_ENV"
	@mkdir -p output/product_reviews
	@echo '{{"rows": {{"total": 2, "done": {done}}}}}' > output/product_reviews/summary.json
	@printf '{{}}\\n{{}}\\n' > output/product_reviews/results.jsonl
"""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """The figures of a clone of a repository of one commit that has this Makefile."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import first_result

    def measure(makefile: str) -> Any:
        origin, empty = tmp_path / "origin", tmp_path / "empty"
        for folder in (origin, empty):
            folder.mkdir()
        (origin / "Makefile").write_text(makefile, "utf-8")
        git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
        for words in ["init", "--quiet"], ["add", "Makefile"], ["commit", "--quiet", "-m", "demo"]:
            subprocess.run([*git, *words], cwd=origin, check=True)
        monkeypatch.setattr(first_result, "ROOT", origin)
        return first_result.measure(empty)

    return measure


def test_a_clone_is_timed_up_to_its_results_without_a_package_cache(
    measured: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    figures = measured(MAKEFILE.format(done=2))
    assert [figure.what for figure in figures][-1] == "from the clone to the first results"
    assert figures[-1].at_most == 120
    assert figures[-1].value >= figures[0].value + figures[1].value > 0


@pytest.mark.parametrize(
    ("makefile", "words"), [(MAKEFILE.format(done=1), "without results"), ("demo:\n\t@exit 3\n", "make")]
)
def test_a_demo_that_fails_or_has_no_results_is_no_figure(
    makefile: str, words: str, measured: Callable[[str], Any]
) -> None:
    with pytest.raises(RuntimeError, match=words):
        measured(makefile)
