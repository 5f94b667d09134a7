"""The provider table, and agac.yml's rows laid over it."""

from dataclasses import fields, replace
from typing import Any

import pytest

from agac.core.errors import Where
from agac.core.types import Params
from agac.providers.batch_apis import BATCH_APIS
from agac.providers.known_providers import AZURE_BATCHES, GENERIC_BATCHES, OPENAI_BATCHES, SHIPPED
from agac.providers.provider import Limits, Price, Provider
from agac.providers.table import DIALECTS, build_providers
from agac.spec.project_models import ProviderSpec


def spec(
    dialect: str | None = None, base_url: str | None = None, api_key: str | None = None, **more: Any
) -> ProviderSpec:
    """An entry of `providers`, as agac.yml is read."""
    said = {"dialect": dialect, "base_url": base_url, "api_key": api_key, **more}
    return ProviderSpec.model_validate({name: value for name, value in said.items() if value is not None})


def build(env: dict[str, str] | None = None, **specs: ProviderSpec) -> dict[str, Provider]:
    providers, problems = build_providers(specs, env or {})
    assert problems == []
    return providers


AT = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize("row", SHIPPED.values(), ids=SHIPPED.keys())
def test_every_shipped_row_is_usable_and_its_batches_can_be_made(row: Provider) -> None:
    assert row.dialect in DIALECTS
    assert row.embedded or row.base_url.startswith(("https://", "http://127.0.0.1", "${"))
    assert not row.base_url.endswith("/")
    assert row.api_key is None
    batching = ["openai", "responses", "azure", "anthropic", "simulator", "simulator-responses", "simulator-anthropic"]
    assert (row.batch is not None) == (row.name in batching)
    if row.batch is not None:
        assert row.batch.api in BATCH_APIS
        assert (row.batch.api == "anthropic") == (row.dialect == "anthropic")
        assert row.batch.max_requests >= 50_000
        assert row.batch.windows
        assert row.batch.unsupported.keys() <= {field.name for field in fields(Params)}


def test_what_is_kept_of_a_prompt_and_who_takes_tools_is_known_or_said() -> None:
    own = {"tools": False, "tools_with_schema": True, "cache": "automatic", "cache_min_tokens": 256}
    rows = build(local=spec("openai-chat", AT), told=spec("openai-chat", AT, **own), openai=spec(cache_min_tokens=7))
    models = {"claude-haiku-4-5": 4096, "claude-opus-4-7": 2048, "claude-opus-5-5": 512, "claude-new": 1024}
    assert {model: rows["anthropic"].least_cached(model) for model in models} == models
    assert [rows[name].least_cached("m") for name in ("local", "told", "openai")] == [None, 256, 7]
    assert [(rows[name].tools, rows[name].tools_with_schema) for name in ("local", "told", "openai", "vllm")] == [
        (True, False), (False, True), (True, True), (True, False),
    ]  # fmt: skip


def test_a_key_comes_from_the_environment_and_is_missed_only_when_its_provider_is_used() -> None:
    providers = build({"OPENAI_API_KEY": " sk-secret-1\n"}, local=spec("openai-chat", AT))
    openai = providers["openai"]
    assert (openai.api_key, openai.missing_variables, openai.secrets) == ("sk-secret-1", (), ("sk-secret-1",))
    assert [name for name, row in providers.items() if row.api_key] == ["openai", "responses"]
    local = spec("openai-chat", "https://${HOST}/v1", "${KEY}", headers={"a": "${KEY}", "b": "${OTHER}"})
    providers = build({"OPENAI_API_KEY": "  "}, local=local)
    assert {name: sorted(providers[name].missing_variables) for name in ("openai", "groq", "simulator", "local")} == {
        "openai": ["OPENAI_API_KEY"], "groq": ["GROQ_API_KEY"], "simulator": [], "local": ["HOST", "KEY", "OTHER"],
    }  # fmt: skip
    assert providers["local"].api_key is None


def test_an_endpoint_is_four_lines_and_a_new_one_is_trusted_with_json_only() -> None:
    local_row = spec("openai-chat", "http://${HOST}:8000/v1/", "${LOCAL_API_KEY}", structured="json_schema")
    local = build({"HOST": "127.0.0.1", "LOCAL_API_KEY": "key-local-1"}, local=local_row)["local"]
    assert (local.base_url, local.api_key) == (AT, "key-local-1")
    assert (local.key_variable, local.structured, local.batch) == ("LOCAL_API_KEY", "json_schema", None)
    assert (local.simulated, local.embedded) == (False, False)
    other = build({"LOCAL_URL": f"{AT}/"}, local=spec("openai-chat", "${LOCAL_URL}"))["local"]
    assert (other.base_url, other.structured) == (AT, "json_object")


def test_limits_prices_headers_and_batch_are_taken_over() -> None:
    local_row = spec(
        "openai-chat",
        "https://${HOST}/v1",
        "${KEY}",
        batch="openai",
        limits={"concurrency": 64, "rpm": 5000, "tpm": 2_000_000},
        prices={"my-model": {"input": 0.25, "output": 2.0, "cached_input": 0.025, "batch": 0.5}},
        headers={"x-team": "data", "x-token": "Bearer ${TOKEN}"},
    )
    env = {"HOST": "host.example", "KEY": "key-secret-1", "TOKEN": "token-secret-1"}
    local = build(env, local=local_row)["local"]
    assert local.limits == Limits(64, 5000, 2_000_000)
    assert local.prices == {"my-model": Price(0.25, 2.0, 0.025, 0.5)}
    assert local.headers == {"x-team": "data", "x-token": "Bearer token-secret-1"}
    assert local.batch == GENERIC_BATCHES["openai"]
    assert {"key-secret-1", "token-secret-1"} <= {*local.secrets}
    assert "secret-1" not in repr(local)


def test_a_shipped_row_keeps_what_agac_yml_does_not_say() -> None:
    gateway = spec(base_url="https://gateway.example/openai", headers={"x-team": "data"})
    rows = build({"OPENAI_API_KEY": "sk-secret-1"}, openai=gateway, simulator=spec(base_url=AT))
    assert rows["openai"].base_url == "https://gateway.example/openai"
    said = replace(
        rows["openai"], base_url=SHIPPED["openai"].base_url, headers={}, header_values=(), secrets=(), api_key=None
    )
    assert said == replace(SHIPPED["openai"], batch=said.batch)
    # a simulator with an address is not started but still simulated
    assert (rows["simulator"].embedded, rows["simulator"].simulated) == (False, True)


def test_batches_are_named_in_a_word_or_where_they_differ() -> None:
    told = build(
        none=spec("openai-chat", "http://h/v1"),
        word=spec("openai-chat", "http://h/v1", batch="openai"),
        mapping=spec(
            "openai-chat",
            "http://h/v1",
            batch={"api": "openai", "max_requests": 1000, "max_bytes": "5MB", "windows": ["48h", "7d"], "grace": "2m"},
            limits={"enqueued_tokens": 90_000},
        ),
        messages=spec("anthropic", "http://h/v1", batch="anthropic"),
        quiet=spec("anthropic", "http://h/v1"),
        groq=spec(batch="openai"),
        azure=spec(batch={"api": "openai", "endpoint_prefix": ""}),
        openai=spec(batch="none"),
        responses=spec(base_url="https://gateway.example/v1"),
        simulator=spec(base_url="http://127.0.0.1:9/v1"),
    )
    generic = GENERIC_BATCHES["openai"]
    assert told["none"].batch is told["quiet"].batch is told["openai"].batch is None
    assert told["word"].batch == told["groq"].batch == generic
    mapping = replace(generic, max_requests=1000, max_bytes=5_000_000, windows=("48h", "7d"), grace=120.0)
    assert (told["mapping"].batch, told["mapping"].limits.enqueued_tokens) == (mapping, 90_000)
    assert told["messages"].batch == GENERIC_BATCHES["anthropic"]
    # what a shipped row knows stays where the same API is said again
    assert told["azure"].batch == replace(AZURE_BATCHES, endpoint_prefix="")
    # a gateway may be later than the provider itself, a simulator is what it is
    assert told["responses"].batch == replace(OPENAI_BATCHES, grace=600.0)
    assert told["simulator"].batch == replace(OPENAI_BATCHES, unsupported={})


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        (spec(base_url="http://h/v1"), "", "dialect is missing; write one of anthropic, openai-chat"),
        (spec("openai-chat"), "", "base_url is missing; write the address before"),
        (spec("openai-chat", "http:///v1"), "base_url", "'http:///v1' is no address"),
        (spec("openai-chat", "https://h/v1?key=1"), "base_url", "'https://h/v1?key=1' goes on after the path"),
        (spec("openai-chat", "https://h/v1/chat/completions/"), "base_url",
         "the dialect adds its path itself; write https://h/v1"),
        (spec("openai-chat", "https://h/v1", batch="anthropic"), "batch",
         "Anthropic's batches hold messages, but the dialect is openai-chat; write batch: openai"),
        (spec("openai-chat", "https://h/v1", batch={"api": "openai", "finds_by": "count"}), "batch.finds_by",
         "OpenAI's batches are found by their key or their file; write key or file"),
        (spec("anthropic", "https://h/v1", batch={"api": "anthropic", "windows": ["24h"]}), "batch.windows",
         "means nothing where api is anthropic; remove it"),
        (spec("openai-chat", "https://h/v1", batch={"api": "none", "max_requests": 5}), "batch.max_requests",
         "means nothing where api is none; remove it"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_row_that_cannot_be_used(given: ProviderSpec, path: str, message: str) -> None:
    providers, [problem] = build_providers({"local": given}, {})
    assert problem.where == Where("agac.yml", path=f"providers.local.{path}".removesuffix("."))
    assert problem.message.startswith(message)
    assert "local" not in providers


def test_problems_stand_where_their_key_stands() -> None:
    places: list[tuple[str, ...]] = []

    def locate(path: tuple[str, ...]) -> Where:
        places.append(path)
        return Where("agac.yml", 7, 3)

    _, problems = build_providers({"my-local": spec(base_url="http:///v1")}, {}, locate)
    assert [str(problem.where) for problem in problems] == ["agac.yml:7:3", "agac.yml:7:3"]
    assert places == [("providers", "my-local"), ("providers", "my-local", "base_url")]


def test_agac_yml_may_name_every_dialect_and_no_other() -> None:
    [named, _] = ProviderSpec.model_json_schema()["properties"]["dialect"]["anyOf"]
    assert sorted(named["enum"]) == sorted(DIALECTS)
