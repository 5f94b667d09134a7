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
from urllib.parse import SplitResult, urlsplit

from agac.core.redact import Redactor
from agac.core.text import split_lines
from agac.core.types import counted
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS, url_trouble
from agac.spec.paths import Refused

_FORMS = (
    "write vllm://HOST:PORT, sglang://HOST:PORT, dynamo://HOST:PORT?version=1.2, openai://, "
    "anthropic://, or the address of a server that speaks OpenAI's chat completions, as "
    "http://HOST:PORT/v1"
)
_DYNAMO = re.compile(r"version=1\.(\d{1,3})(\.\d+)*")
PATIENCE = 5.0
"""Seconds for which a server is asked about itself."""

_ENGINES = ("vllm", "sglang", "dynamo", "generic")
_SERVICES = ("openai", "anthropic")


def parse_backend(text: str) -> tuple[str, str | None, int | None]:
    """Reads `vllm://host:port[/path]` and the like: the provider that it means, the address in
    place of that one's own (None: its own), and the minor version of a Dynamo that takes hints
    (`?version=1.2`). Raises Refused."""
    parts, port = _parts_of(text)
    provider = {"http": "generic", "https": "generic"}.get(parts.scheme, parts.scheme)
    if "://" not in text or provider not in (*_ENGINES, *_SERVICES):
        raise Refused(f"'{text}' is no backend; {_FORMS}")
    if parts.username or parts.password:
        where = f"`providers: {{{provider}: {{api_key: ${{VARIABLE}}}}}}` in agac.yml"
        raise Refused(f"a backend holds no login; put the key into {where}")
    if provider in _SERVICES:
        if parts.netloc or parts.path:
            raise Refused(
                f"{provider}:// names no host; for another server than {provider}'s own, {_FORMS}"
            )
        return provider, None, None
    if not parts.hostname:
        raise Refused(f"'{text}' names no host; {_FORMS}")
    if provider == "generic":
        scheme = parts.scheme
    else:
        scheme = "https" if port == 443 else "http"
    address = f"{scheme}://{parts.netloc}"
    address += parts.path.rstrip("/") or "/v1"
    if provider == "dynamo":
        hints = _hints_version(parts.query)
        trouble = url_trouble(address)
    else:
        hints = None
        trouble = url_trouble(f"{address}?{parts.query}" if parts.query else address)
    if trouble:
        raise Refused(trouble)
    return provider, address, hints


def _parts_of(text: str) -> tuple[SplitResult, int | None]:
    """Returns the parts of an address, and its port. Raises Refused."""
    try:
        parts = urlsplit(text.strip())
        return parts, parts.port
    except ValueError as error:
        raise Refused(f"'{text}' is no address: {error}; {_FORMS}") from None


def _hints_version(query: str) -> int | None:
    """Returns the minor version of a Dynamo that takes hints; None: it is not said. Raises
    Refused."""
    if not query:
        return None
    version = _DYNAMO.fullmatch(query)
    if version is None:
        known = (
            "agac knows the hints of Dynamo 1.x: write ?version=1.2, or nothing and no "
            "hints are sent"
        )
        raise Refused(f"'{query}': {known}")
    return int(version[1])


def at_backend(backend: str, providers: Mapping[str, Provider]) -> Provider:
    """Returns the provider that a backend means, at its address. Raises Refused."""
    name, address, hints = parse_backend(backend)
    row = providers[name]
    missing = tuple(
        variable
        for variable in row.missing_variables
        if variable == row.key_variable or not address
    )
    return replace(row, base_url=address or row.base_url, hints=hints, missing_variables=missing)


def served_model(row: Provider) -> str:
    """Returns the one model that a server has. Raises Refused where it cannot be asked, or has
    several."""
    if row.offline:
        raise Refused(
            f"no model is named, and {row.base_url} is not asked offline; name one with `model`"
        )
    headers = {**DIALECTS[row.dialect].headers(row), **row.headers}
    request = urllib.request.Request(f"{row.base_url}/models", headers=headers)  # noqa: S310
    try:
        # http and https alone
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            listed = json.loads(answer.read(1_000_000))["data"]
        names = [str(entry["id"]) for entry in listed]
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"did not tell its models ({error})"
    else:
        if len(names) == 1:
            return names[0]
        colon = ": " if names else ""
        why = f"has {counted(len(names), 'model')}{colon}{', '.join(names[:9])}"
    raise Refused(f"no model is named, and {row.base_url} {why}; name one with `model`")


# What an engine counts of its prefix cache, in tokens: the first of these names that is there. Of
# older versions too.
#
# Facts: the sources of vLLM (v1/metrics/loggers.py) and SGLang (srt/metrics/collector.py), read
# November 2026.

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\d[\d.eE+-]*)(?:\s+\d+)?\s*")


async def engine_counts(
    row: Provider, env: Mapping[str, str], redactor: Redactor
) -> tuple[float, float] | None:
    """Returns how many prompt tokens a serving engine has seen so far, and how many of them its
    prefix cache had; None: unknown."""
    import aiohttp

    from agac.providers.event_stream import read_body
    from agac.providers.http import Sender

    sender = Sender(row, redactor, env=env)
    address = row.base_url.removesuffix("/v1") + "/metrics"
    text = ""
    try:
        bounds = aiohttp.ClientTimeout(total=PATIENCE)
        async with sender.session().get(address, timeout=bounds, allow_redirects=False) as answer:
            if answer.status == 200:
                text = (await read_body(answer, sender.most)).decode()
        sums = _summed_samples(text)
    except (aiohttp.ClientError, OSError, ValueError):
        return None
    finally:
        await sender.close()
    seen, cached = (
        next((sums[name] for name in names if name in sums), inf)
        for names in row.engine or ((), ())
    )
    return (seen, cached) if isfinite(seen + cached) else None


def _summed_samples(text: str) -> Mapping[str, float]:
    """Returns the samples of Prometheus's text format, those of one name added up over their
    labels: over engines, kinds of caches. Raises ValueError for what is no number."""
    sums = defaultdict[str, float](float)
    for sample in filter(None, map(_LINE.fullmatch, split_lines(text))):
        sums[sample[1].removesuffix("_total")] += float(sample[2])
    return sums
