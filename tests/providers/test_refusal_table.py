"""One table says what a refusal is about: of a call, an upload, a creation, a look, or a whole batch."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.types import KIND_OF, About
from agac.providers.error_bodies import ErrorBody
from agac.providers.error_rules import Operation
from agac.providers.error_tables import refusal
from agac.providers.table import DIALECTS

OPERATIONS = get_args(Operation)
RULES = {name: dialect.rules for name, dialect in DIALECTS.items()}
SAID: list[tuple[int | None, dict[str, str], dict[str, About]]] = [
    # status, the error, and what it is about for each operation that is named
    (413, {}, {"call": About.SIZE, "upload": About.SIZE, "create": About.SIZE}),
    (400, {"code": "file_too_large"}, {"upload": About.SIZE, "batch": About.SIZE, "call": About.REQUEST}),
    (None, {"code": "too_many_tasks", "message": "Too many."}, {"batch": About.SIZE}),
    (400, {"message": "The file exceeds the maximum size of 200 MB."}, {"upload": About.SIZE}),
    (404, {}, {"call": About.FRAME, "create": About.FRAME, "known": About.SERVER}),
    (410, {}, {"known": About.REQUEST, "call": About.FRAME}),
    (429, {}, {"call": About.LANE, "create": About.LANE, "known": About.LANE}),
    (429, {"code": "token_limit_exceeded"}, {"create": About.QUEUE, "call": About.LANE}),
    (None, {"message": "Enqueued token limit reached: Limit: 90,000."}, {"batch": About.QUEUE}),
    (400, {"message": "Cannot find file file-1."}, {"create": About.INPUT, "call": About.REQUEST}),
    (401, {}, {"call": About.ACCOUNT, "upload": About.ACCOUNT, "known": About.ACCOUNT}),
    (403, {}, {"call": About.UNSURE, "upload": About.ACCOUNT, "known": About.ACCOUNT}),
    (403, {"type": "permission_error"}, {"call": About.ACCOUNT}),
    (None, {"message": "odd"}, {"batch": About.REQUEST}),
    (None, {"message": "Model m is not supported by the Batch API."}, {"batch": About.FRAME}),
    (None, {"message": "Invalid schema for response_format 'a'."}, {"batch": About.FRAME}),
    (400, {"message": "Invalid schema for function 'look'."}, {"call": About.FRAME, "create": About.FRAME}),
    (400, {"message": "The model `m` does not exist."}, {"call": About.FRAME, "batch": About.FRAME}),
    (400, {"message": "The model could not read the image: not found."}, {"call": About.REQUEST}),
    (403, {"message": "Request blocked. Reference token: 12"}, {"call": About.UNSURE}),
    (500, {}, {"call": About.SERVER, "upload": About.SERVER, "known": About.SERVER}),
]


@pytest.mark.parametrize("dialect", RULES)
@pytest.mark.parametrize(("status", "error", "about"), SAID)
def test_an_error_is_about_the_same_in_every_dialect(
    dialect: str, status: int | None, error: dict[str, str], about: dict[Operation, About]
) -> None:
    body = ErrorBody(**error)
    assert {of: refusal(body, RULES[dialect], status, of).about for of in about} == about


def test_a_models_schema_and_tools_are_known_by_their_codes_too() -> None:
    for code in ("model_not_found", "invalid_json_schema", "invalid_function_parameters"):
        assert refusal(ErrorBody(code=code), RULES["openai-chat"], None, "batch").about is About.FRAME


words: Any = st.text(max_size=60)


@given(
    st.sampled_from(sorted(RULES)), st.none() | st.integers(100, 999), st.sampled_from(OPERATIONS), words, words, words
)
def test_every_refusal_is_about_something(
    dialect: str, status: int | None, of: Operation, message: str, kind: str, code: str
) -> None:
    assert refusal(ErrorBody(message, kind, code), RULES[dialect], status, of).about in KIND_OF


def test_every_subject_has_what_is_done_about_it() -> None:
    assert set(KIND_OF) == set(About)
