"""Backends: an address as a short way to write a provider, and what a serving engine tells of
itself."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite
from urllib.parse import urlsplit

from agac.core.redact import Redactor
from agac.core.text import split_lines
from agac.core.types import counted
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS, url_trouble
from agac.spec.paths import Refused

_FORMS = (
    "write vllm://HOST:PORT, sglang://HOST:PORT, dynamo://HOST:PORT?version=1.2, openai://, "
    "anthropic://, or the "
    "address of a server that speaks OpenAI's chat completions, as http://HOST:PORT/v1"
)
_DYNAMO = re.compile(r"version=1\.(\d{1,3})(\.\d+)*")
PATIENCE = 5.0  # seconds for which a server is asked about itself


def parse_backend(text: str) -> tuple[str, str | None, int | None]:
    """Reads `vllm://host:port[/path]` and the like: the provider that it means, the address in
    place of that one's own (None: its own), and the minor version of a Dynamo that takes hints
    (`?version=1.2`). Raises Refused."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise Refused(f"'{text}' is no address: {error}; {_FORMS}") from None
    provider = {"http": "generic", "https": "generic"}.get(parts.scheme, parts.scheme)
    if "://" not in text or provider not in (
        "vllm",
        "sglang",
        "dynamo",
        "generic",
        "openai",
        "anthropic",
    ):
        raise Refused(f"'{text}' is no backend; {_FORMS}")
    if parts.username or parts.password:
        where = f"`providers: {{{provider}: {{api_key: ${{VARIABLE}}}}}}` in agac.yml"
        raise Refused(f"a backend holds no login; put the key into {where}")
    if provider in ("openai", "anthropic"):
        if parts.netloc or parts.path:
            raise Refused(
                f"{provider}:// names no host; for another server than {provider}'s own, {_FORMS}"
            )
        return provider, None, None
    if not parts.hostname:
        raise Refused(f"'{text}' names no host; {_FORMS}")
    if provider == "generic":
        scheme = parts.scheme
    elif port == 443:
        scheme = "https"
    else:
        scheme = "http"
    address = f"{scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"
    told = parts.query if provider == "dynamo" else ""
    version = _DYNAMO.fullmatch(told)
    if version is None and told:
        known = (
            "agac knows the hints of Dynamo 1.x: write ?version=1.2, or nothing and no "
            "hints are sent"
        )
        raise Refused(f"'{parts.query}': {known}")
    trouble = url_trouble(address + (f"?{parts.query}" if parts.query != told else ""))
    if trouble:
        raise Refused(trouble)
    return provider, address, int(version[1]) if version else None


def at_backend(backend: str, providers: Mapping[str, Provider]) -> Provider:
    """The provider that a backend means, at its address. Raises Refused."""
    name, address, hints = parse_backend(backend)
    row = providers[name]
    missing = tuple(
        variable
        for variable in row.missing_variables
        if variable == row.key_variable or not address
    )
    return replace(row, base_url=address or row.base_url, hints=hints, missing_variables=missing)


def served_model(row: Provider) -> str:
    """The one model that a server has. Raises Refused where it cannot be asked, or has several."""
    if row.offline:
        raise Refused(
            f"no model is named, and {row.base_url} is not asked offline; name one with `model`"
        )
    headers = {**DIALECTS[row.dialect].headers(row), **row.headers}
    asked = urllib.request.Request(f"{row.base_url}/models", headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:  # noqa: S310 - http and https alone
            found = [str(one["id"]) for one in json.loads(answer.read(1_000_000))["data"]]
        if len(found) == 1:
            return found[0]
        said = f"has {counted(len(found), 'model')}{': ' if found else ''}{', '.join(found[:9])}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        said = f"did not tell its models ({error})"
    raise Refused(f"no model is named, and {row.base_url} {said}; name one with `model`")


# What an engine counts of its prefix cache, in tokens: the first of these names that is there. Of
# older versions too.
#
# Facts: the sources of vLLM (v1/metrics/loggers.py) and SGLang (srt/metrics/collector.py), read
# November 2026.

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\d[\d.eE+-]*)(?:\s+\d+)?\s*")


async def engine_counts(
    row: Provider, env: Mapping[str, str], redactor: Redactor
) -> tuple[float, float] | None:
    """Prompt tokens that a serving engine has seen so far, and how many of them its prefix cache
    had; None: unknown. Samples (Prometheus's text format) of one name are added up over their
    labels: over engines, kinds of caches."""
    import aiohttp

    from agac.providers.http import Sender, read_body

    sender = Sender(row, redactor, env=env)
    sums = defaultdict[str, float](float)
    address = row.base_url.removesuffix("/v1") + "/metrics"
    try:
        bounds = aiohttp.ClientTimeout(total=PATIENCE)
        async with sender.session().get(address, timeout=bounds, allow_redirects=False) as answer:
            if answer.status == 200:
                text = (await read_body(answer, sender.most)).decode()
            else:
                text = ""
        for found in filter(None, map(_LINE.fullmatch, split_lines(text))):
            sums[found[1].removesuffix("_total")] += float(found[2])
    except (aiohttp.ClientError, OSError, ValueError):
        return None
    finally:
        await sender.close()
    seen, had = (
        next((sums[name] for name in names if name in sums), inf)
        for names in row.engine or ((), ())
    )
    return (seen, had) if isfinite(seen + had) else None
