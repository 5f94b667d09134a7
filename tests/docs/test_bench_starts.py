"""What a newcomer waits for is measured: a fresh clone up to its first results."""

import subprocess
from pathlib import Path
from types import ModuleType

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
def first_result(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import first_result

    return first_result


def repository(folder: Path, makefile: str) -> Path:
    """A repository of one commit."""
    folder.mkdir()
    (folder / "Makefile").write_text(makefile, "utf-8")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
    for words in ["init", "--quiet"], ["add", "Makefile"], ["commit", "--quiet", "-m", "demo"]:
        subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


def test_a_clone_is_timed_up_to_its_results_without_a_package_cache(
    first_result: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setattr(first_result, "ROOT", repository(tmp_path / "origin", MAKEFILE.format(done=2)))
    (tmp_path / "empty").mkdir()
    figures = first_result.measure(tmp_path / "empty")
    assert [figure.what for figure in figures][-1] == "from the clone to the first results"
    assert figures[-1].at_most == 120
    assert figures[-1].value >= figures[0].value + figures[1].value > 0


def test_a_clone_without_results_is_no_figure(
    first_result: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_result, "ROOT", repository(tmp_path / "origin", MAKEFILE.format(done=1)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="without results"):
        first_result.measure(tmp_path / "empty")


def test_a_demo_that_fails_is_no_figure(
    first_result: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_result, "ROOT", repository(tmp_path / "origin", "demo:\n\t@exit 3\n"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="make"):
        first_result.measure(tmp_path / "empty")
