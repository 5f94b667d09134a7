"""The provider table, and agac.yml's rows laid over it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from agac.core.errors import Where
from agac.providers.dialects import DIALECTS
from agac.providers.rows import build_providers
from agac.providers.table import SHIPPED, Limits, Price, Provider
from agac.spec.models import ProviderSpec


@dataclass
class Prices:
    input: float
    output: float
    cached_input: float | None = None
    batch: float | None = None
    flex: float | None = None
    priority: float | None = None


@dataclass
class Spec:
    """An entry of `providers` as any reader of agac.yml may give it."""

    dialect: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    batch: str | None = None
    structured: Any = None
    limits: Limits | None = None
    prices: dict[str, Prices] | None = None
    headers: dict[str, str] | None = field(default=None)


def build(env: dict[str, str] | None = None, **specs: Spec) -> dict[str, Provider]:
    providers, problems = build_providers(specs, env or {})
    assert problems == []
    return providers


@pytest.mark.parametrize("row", SHIPPED.values(), ids=SHIPPED.keys())
def test_every_shipped_row_is_usable(row: Provider) -> None:
    assert row.dialect in DIALECTS
    assert row.embedded or row.base_url.startswith(("https://", "http://127.0.0.1", "${"))
    assert not row.base_url.endswith("/")
    assert row.api_key is None


def test_a_key_comes_from_the_environment() -> None:
    providers = build({"OPENAI_API_KEY": " sk-secret-1\n"})
    assert providers["openai"].api_key == "sk-secret-1"
    assert providers["openai"].missing_variables == ()
    assert providers["openai"].secrets == ("sk-secret-1",)


def test_a_missing_key_is_no_problem_until_its_provider_is_used() -> None:
    providers = build({"OPENAI_API_KEY": "  "})
    assert providers["openai"].missing_variables == ("OPENAI_API_KEY",)
    assert providers["groq"].missing_variables == ("GROQ_API_KEY",)
    assert providers["simulator"].missing_variables == ()
    assert providers["ollama"].missing_variables == ()


def test_one_providers_key_is_never_anothers() -> None:
    providers = build({"OPENAI_API_KEY": "sk-secret-1"}, local=Spec("openai-chat", "http://127.0.0.1:8000/v1"))
    assert [name for name, row in providers.items() if row.api_key] == ["openai", "responses"]


def test_an_endpoint_is_four_lines() -> None:
    spec = Spec("openai-chat", "http://${HOST}:8000/v1/", "${LOCAL_API_KEY}", structured="json_schema")
    local = build({"HOST": "127.0.0.1", "LOCAL_API_KEY": "key-local-1"}, local=spec)["local"]
    assert (local.base_url, local.api_key) == ("http://127.0.0.1:8000/v1", "key-local-1")
    assert (local.key_variable, local.structured, local.batch) == ("LOCAL_API_KEY", "json_schema", None)
    assert not local.simulated
    assert not local.embedded


def test_a_new_endpoint_is_trusted_with_json_only() -> None:
    assert build(local=Spec("openai-chat", "http://127.0.0.1:8000/v1"))["local"].structured == "json_object"


def test_limits_prices_headers_and_batch_are_taken_over() -> None:
    spec = Spec(
        "openai-chat",
        "https://${HOST}/v1",
        batch="openai",
        limits=Limits(64, 5000, 2_000_000),
        prices={"my-model": Prices(0.25, 2.0, 0.025, 0.5)},
        headers={"x-team": "data", "x-token": "Bearer ${TOKEN}"},
    )
    local = build({"HOST": "host.example", "TOKEN": "token-secret-1"}, local=spec)["local"]
    assert local.limits == Limits(64, 5000, 2_000_000)
    assert local.prices == {"my-model": Price(0.25, 2.0, 0.025, 0.5)}
    assert local.headers == {"x-team": "data", "x-token": "Bearer token-secret-1"}
    assert local.batch == "openai"
    assert "token-secret-1" in local.secrets


def test_a_shipped_row_keeps_what_agac_yml_does_not_say() -> None:
    spec = Spec(base_url="https://gateway.example/openai", headers={"x-team": "data"})
    openai = build({"OPENAI_API_KEY": "sk-secret-1"}, openai=spec)["openai"]
    assert openai.base_url == "https://gateway.example/openai"
    assert (openai.api_key, openai.strict_schema, openai.max_tokens_field) == (
        "sk-secret-1",
        True,
        "max_completion_tokens",
    )


def test_a_simulator_with_an_address_is_not_started_but_still_simulated() -> None:
    simulator = build(simulator=Spec(base_url="http://127.0.0.1:9/v1"))["simulator"]
    assert not simulator.embedded
    assert simulator.simulated


def test_an_address_can_come_from_the_environment_as_a_whole() -> None:
    spec = Spec("openai-chat", "${LOCAL_URL}")
    assert build({"LOCAL_URL": "http://127.0.0.1:8000/v1/"}, local=spec)["local"].base_url == "http://127.0.0.1:8000/v1"


def test_every_missing_variable_is_remembered_once() -> None:
    spec = Spec("openai-chat", "https://${HOST}/v1", "${KEY}", headers={"a": "${KEY}", "b": "${OTHER}"})
    local = build({}, local=spec)["local"]
    assert sorted(local.missing_variables) == ["HOST", "KEY", "OTHER"]
    assert local.api_key is None


def test_no_secret_is_in_the_text_of_a_row() -> None:
    spec = Spec("openai-chat", "http://127.0.0.1/v1", "${KEY}", headers={"x-token": "${TOKEN}"})
    local = build({"KEY": "key-secret-1", "TOKEN": "token-secret-1"}, local=spec)["local"]
    assert "secret" not in repr(local)


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        (Spec(base_url="http://h/v1"), "providers.local", "dialect is missing; write one of openai-chat"),
        (
            Spec("openai-caht", "http://h/v1"),
            "providers.local.dialect",
            "unknown dialect 'openai-caht'; did you mean 'openai-chat'?",
        ),
        (Spec("smoke", "http://h/v1"), "providers.local.dialect", "unknown dialect 'smoke'; agac speaks openai-chat"),
        (Spec("openai-chat"), "providers.local", "base_url is missing; write the address before"),
        (Spec("openai-chat", "localhost:8000"), "providers.local.base_url", "'localhost:8000' is no address"),
        (
            Spec("openai-chat", "https://h/v1?key=1"),
            "providers.local.base_url",
            "'https://h/v1?key=1' goes on after the path",
        ),
        (Spec("openai-chat", "https://me:pw@h/v1"), "providers.local.base_url", "a password in an address"),
        (
            Spec("openai-chat", "https://h/v1/chat/completions/"),
            "providers.local.base_url",
            "the dialect adds its path itself; write https://h/v1",
        ),
        (Spec("openai-chat", "http://[h/v1"), "providers.local.base_url", "'http://[h/v1' is no address"),
    ],
)
def test_what_is_said_of_a_row_that_cannot_be_used(spec: Spec, path: str, message: str) -> None:
    providers, [problem] = build_providers({"local": spec}, {})
    assert (problem.path, problem.where) == (path, Where("agac.yml"))
    assert problem.message.startswith(message)
    assert "local" not in providers


def test_problems_stand_where_their_key_stands() -> None:
    places: list[tuple[str, ...]] = []

    def locate(path: tuple[str, ...]) -> Where:
        places.append(path)
        return Where("agac.yml", 7, 3)

    _, problems = build_providers({"my.local": Spec("smoke", "no")}, {}, locate)
    assert [str(problem.where) for problem in problems] == ["agac.yml:7:3", "agac.yml:7:3"]
    assert ("providers", "my.local", "dialect") in places


def test_what_agac_yml_reads_is_what_rows_take() -> None:
    spec = ProviderSpec.model_validate({"dialect": "openai-chat", "base_url": "http://127.0.0.1:8000/v1"})
    providers, problems = build_providers({"local": spec}, {})
    assert problems == []
    assert providers["local"].limits == Limits()


def test_the_table_is_there_without_a_network_library() -> None:
    loaded = "import sys, agac.providers.rows, agac.providers.modelref, agac.providers.prices; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiohttp", "openai", "pydantic", "genai_prices", "jsonschema", "yaml"} & set(modules)
