"""`backend`: an address as a short way to write a provider, and what a serving engine counts."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from support.remote import Site, serving
from support.tree import Tree

from agac.core.errors import Where
from agac.core.redact import Redactor
from agac.plan.plan import Selection, make_plan
from agac.plan.resolved_models import resolve_models
from agac.plan.restored_plan import restored_plan
from agac.plan.run_settings import run_settings
from agac.providers.backend import at_backend, engine_counts
from agac.providers.known_providers import SHIPPED
from agac.providers.table import build_providers
from agac.spec.project import Overrides

VLLM = "http://gpu:8000/v1"
OWN = "providers: {mine: {dialect: openai-chat, base_url: 'http://mine:1/v1'}}\n"
KEYS = "providers: {vllm: {base_url: 'http://gpu:9/v1', structured: none}}\n"

CASES: list[tuple[str, str, str, str, str]] = [
    # agac.yml, the workflow's defaults, the stage, flags; what is asked where, or what is wrong
    ("", "", "backend: 'vllm://gpu:8000', model: Qwen/Qwen2.5-7B", "", f"vllm/Qwen/Qwen2.5-7B {VLLM}"),
    ("", "", "backend: 'vllm://gpu:8000', model: vllm/q?temperature=0", "", f"vllm/q {VLLM}"),
    ("", "", "backend: 'vllm://gpu:8000', model: openai/gpt-oss-20b", "", f"vllm/openai/gpt-oss-20b {VLLM}"),
    ("", "backend: 'vllm://gpu:8000'", "model: q", "", f"vllm/q {VLLM}"),
    ("", "backend: 'vllm://gpu:8000'", "model: openai/gpt-5", "", "openai/gpt-5 https://api.openai.com/v1"),
    ("", "backend: 'vllm://gpu:8000', model: q", "", "sglang://gpu:443/x", "sglang/q https://gpu:443/x"),
    ("", "", "model: simulator/small", "vllm://SITE", "vllm/only http://SITE/v1"),
    ("", "", "", "vllm://SITE", "vllm/only http://SITE/v1"),
    ("", "", "", "http://SITE/many", "http://SITE/many has 2 models: a, b; name one with `model`"),
    ("", "", "", "http://SITE/none", "http://SITE/none did not tell its models (HTTP Error 404: Not Found); name one"),
    ("", "", "backend: 'openai://', model: gpt-5.4-mini", "", "openai/gpt-5.4-mini https://api.openai.com/v1"),
    ("", "", "backend: 'http://gpu:8000', model: q", "", f"generic/q {VLLM}"),
    ("", "", "backend: 'vllm://me:secret@gpu', model: q", "", "a backend holds no login; put the key into"),
    ("", "", "backend: 'anthropic://gpu', model: q", "", "anthropic:// names no host"),
    ("", "", "backend: 'vlm://gpu', model: q", "", "'vlm://gpu' is no backend; write vllm://HOST:PORT, "),
    ("", "", "backend: 'vllm://gpu:x', model: q", "", "'vllm://gpu:x' is no address"),
    ("", "", "backend: 'http://gpu/v1/chat/completions', model: q", "", "the dialect adds its path itself"),
    (KEYS, "", "backend: 'vllm://gpu:9', model: q", "", "vllm/q http://gpu:9/v1 none"),
    (KEYS, "", "backend: 'vllm://gpu', model: q", "", "another address than that of provider 'vllm' at agac.yml:1"),
    ("", "", "backend: 'dynamo://gpu:8000', model: q", "", f"dynamo/q {VLLM} json_object"),
    ("", "", "backend: 'dynamo://gpu:8000?version=1.2.1', model: q", "", f"dynamo/q {VLLM}"),
    ("", "", "backend: 'dynamo://gpu?version=2.0', model: q", "", "'version=2.0': agac knows the hints of Dynamo 1.x"),
    ("", "", "backend: 'dynamo://gpu?version=1', model: q", "", "write ?version=1.2, or nothing"),
    ("", "", "backend: 'dynamo://gpu?verson=1.2', model: q", "", "'verson=1.2': agac knows the hints"),
    ("", "", "backend: 'vllm://gpu?version=1.2', model: q", "", "goes on after the path"),
    (OWN, "", "backend: 'vllm://gpu', model: mine/q", "", "names provider 'mine' of agac.yml; remove one"),
]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(Site()) as found:
        for path, names in (("/v1", ["only"]), ("/many", ["a", "b"])):
            found.pages[f"{path}/models"] = json.dumps({"data": [{"id": name} for name in names]}).encode()
        yield found


@pytest.mark.parametrize(("project", "defaults", "keys", "typed", "expected"), CASES)
def test_where_a_stage_is_asked(
    tree: Tree, site: Site, project: str, defaults: str, keys: str, typed: str, expected: str
) -> None:
    tree.write("agac.yml", project)
    file, at = tree.project().file, f"127.0.0.1:{site.port}"
    typed, expected = typed.replace("SITE", at), expected.replace("SITE", at)
    providers, _ = build_providers(file.providers, {"OPENAI_API_KEY": "k"})
    addressed = {name: Where("agac.yml", 1) for name in file.providers}
    stage = ", ".join(filter(None, ["name: a", keys]))
    text = f"input: {{path: data/reviews.csv}}\ndefaults: {{{defaults}}}\nstages:\n  - {{{stage}}}\n"
    workflow = tree.workflow(text, Overrides(backend=typed or None))
    models, problems = resolve_models(workflow, providers, addressed=addressed)
    if not models:
        assert [expected] == [expected for problem in problems if expected in str(problem)], list(map(str, problems))
        return
    [one] = models["a"]
    found = [one.lane, one.provider.base_url, one.provider.structured]
    assert (problems, found[: len(expected.split())]) == ([], expected.split())
    assert not one.provider.missing_variables
    plan = make_plan(workflow, models, tree.root, Selection(), None)
    settings = json.loads(json.dumps(run_settings(plan, tree.root)))
    again = restored_plan("w", plan.body, settings, providers, tree.root)
    assert again.asking[0].provider == one.provider, "a run that goes on finds the same server"


METRICS = {
    "vllm": 'vllm:prefix_cache_queries_total{engine="0",m="a b"} 100\nvllm:prefix_cache_queries_total{engine="1"} 2e1\n'
    "vllm:gpu_prefix_cache_hits 9\n# HELP vllm:prefix_cache_hits_total x\nvllm:prefix_cache_hits_total 80.0 123\n",
    "vllm:8": "vllm:gpu_prefix_cache_queries_total 120\nvllm:gpu_prefix_cache_hits_total 80\n",
    "sglang": 'sglang:prompt_tokens_total{} 120\nsglang:cached_tokens_total{cache_source="device"} 50\n'
    'sglang:cached_tokens_total{cache_source="host"} 30\nsglang:cache_hit_rate 0.0\n',
    "dynamo": 'dynamo_frontend_input_sequence_tokens_sum{model="a"} 100\ndynamo_frontend_cached_tokens_sum 80\n'
    'dynamo_frontend_input_sequence_tokens_sum{model="b"} 20\ndynamo_frontend_cached_tokens_count{model="b"} 2\n',
    "sglang:off": "sglang:prompt_tokens_total 120\n",
    "vllm:off": "nothing here\n",
}


@pytest.mark.parametrize("name", METRICS)
def test_what_an_engine_counted_by_the_names_of_each_version(site: Site, name: str) -> None:
    kind, _, off = name.partition(":")
    site.pages["/metrics"] = METRICS[name].encode()
    row = at_backend(site.url.replace("http", kind), SHIPPED)
    found = asyncio.run(engine_counts(row, {}, Redactor([])))
    assert found == (None if off == "off" else (120.0, 80.0))
    gone = at_backend(site.url.replace("http", kind) + "/gone/v1", SHIPPED)
    assert asyncio.run(engine_counts(gone, {}, Redactor([]))) is None
