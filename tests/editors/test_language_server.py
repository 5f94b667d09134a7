"""What people see in an editor: the real YAML language server with the schemas that agac writes."""

from pathlib import Path

import pytest
from lsp import LanguageServer
from support.project import ProjectFolder
from support.soak import few

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ["agac.yml", *sorted(f"workflows/{path.name}" for path in (ROOT / "workflows").glob("*.yml"))]
SHIPPED.append("agac/api/template/workflows/reviews.yml")
STAGE = "input: {path: data/rows.csv}\nstages:\n  - name: classify\n    prompt: Hello\n"


@pytest.mark.parametrize("path", few(SHIPPED, 4))
def test_a_shipped_file_has_nothing_underlined_until_a_key_is_wrong(path: str, editor: LanguageServer) -> None:
    text, path = (ROOT / path).read_text("utf-8"), path.removeprefix("agac/api/template/")
    assert editor.problems(path, text) == []
    assert editor.problems(path, f"{text}nonsense: 1\n") == ["Property nonsense is not allowed."]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{STAGE}    promt: Again\n", "Property promt is not allowed."),
        (f"{STAGE}    reuse: somtimes\n", 'Value is not accepted. Valid values: "content", "row", "never".'),
        (f"{STAGE}    temperature: warm\n", 'Incorrect type. Expected "number".'),
        (f"{STAGE}    temperature: 3\n", "Value is above the maximum of 2."),
        (f"{STAGE}row_timeout: 2 minutes\n", "write a time as 90, 90s, 30m, 12h, 7d or 2w"),
        (STAGE.replace("classify", "vars"), "letters, digits, _ and -; starts with a letter or _; not vars"),
        (STAGE.replace("    prompt: Hello\n", "    messages: []\n"), "Array has too few items. Expected 1 or more."),
        (STAGE.replace("name: classify", "prompt: Hi").replace("    prompt: Hello\n", ""), 'Missing property "name".'),
    ],
)
def test_a_mistake_is_underlined(text: str, problem: str, editor: LanguageServer) -> None:
    (found,) = editor.problems("workflows/mistaken.yml", text)
    assert found.startswith(problem)


def test_agac_yml_and_a_card_in_yaml_are_known(editor: LanguageServer) -> None:
    text = "providers:\n  local: {base_url: 'http://127.0.0.1:8000/v1', api_key: sk-abc}\n"
    assert editor.problems("agac.yml", text) == ["looks like a secret; write ${MY_KEY} and put the key in .env"]
    assert editor.problems("agac.yml", text.replace("sk-abc", "'${LOCAL_API_KEY}'")) == []
    assert editor.problems("agentcards/judge.yml", "model: simulator/small\nrequest_params: {topP: 0.5}\n") == []
    assert editor.problems("agentcards/judge.yml", "modle: simulator/small\n") == ["Property modle is not allowed."]


def test_keys_and_values_are_offered_and_the_meaning_of_a_key_is_shown(editor: LanguageServer) -> None:
    offered = editor.offered("workflows/typing.yml", f"{STAGE}    |\n")
    assert {"output_schema", "fallback", "repair", "agent", "messages", "needs"} <= set(offered)
    assert not {"stages", "input", "name", "prompt"} & set(offered)
    first = STAGE.replace("    prompt: Hello\n", "    |\n")
    assert {"prompt", "output_schema", "fallback"} <= set(editor.offered("workflows/typing.yml", first))
    assert {"all", "failed"} <= set(editor.offered("workflows/typing.yml", f"{STAGE}keep_replies: |\n"))
    models = editor.offered("workflows/typing.yml", f"{STAGE}    model: |\n")
    assert {"simulator/small", "openai/gpt-5.4-mini?reasoning=low"} <= set(models)
    shown = editor.hover("workflows/typing.yml", STAGE.replace("prompt", "pro|mpt"))
    assert "Message of each row, with ${placeholders}: text, or a file." in shown.replace("\\", "")
    assert "agac workflow" in editor.hover("workflows/typing.yml", STAGE.replace("stages", "sta|ges"))


def test_a_first_line_does_without_settings(editor: LanguageServer, example: ProjectFolder) -> None:
    shown = example.agac("schema", "--write").out
    line = next(line for line in shown.split("\n") if line.startswith("# yaml-language-server:"))
    path = "elsewhere/unknown_to_the_settings.yml"
    text = f"{STAGE}    promt: Again\n"
    assert editor.problems(path, text) == []
    assert editor.problems(path, f"{line}\n{text}") == ["Property promt is not allowed."]
