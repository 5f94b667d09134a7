"""Secrets are taken out of text where the text enters an error, a log or the store: by value, not by guessing. And what
a secret looks like that was written into a file, where it must not stand."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "[redacted]"
MIN_SECRET = 6  # shorter values are not treated as secrets: masking every `abc` would destroy messages and hide nothing

MIN_IN_DATA = 12
"""Shorter ones are left alone in what a model answers: a local server's dummy key (`ollama`, `lm-studio`) is a word
that results may hold. No provider's key is so short."""


class Redactor:
    """Replaces known secret values by `[redacted]`. Give it each key, token and header value of the providers; those
    that are `in_text` alone, header values as they are written in a file, may be words of an answer."""

    __slots__ = ("_bytes", "_secrets")

    def __init__(self, secrets: Iterable[str] = (), in_text: Iterable[str] = ()) -> None:
        # longest first, so that a secret that contains another is masked whole
        known = {form for s in secrets if len(s) >= MIN_SECRET for form in _forms(s)}
        written = {form for s in in_text if len(s) >= MIN_SECRET for form in _forms(s)}
        self._secrets = sorted(known | written, key=len, reverse=True)
        in_data = (form for form in self._secrets if form in known and len(form) >= MIN_IN_DATA)
        self._bytes = [form.encode("utf-8", "surrogateescape") for form in in_data]

    def clean(self, text: str) -> str:
        """The same text without any known secret."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def clean_bytes(self, body: bytes) -> bytes:
        """The same answer of a provider without any known secret that cannot be a word."""
        for secret in self._bytes:
            if secret in body:
                body = body.replace(secret, MASK.encode())
        return body

    def clean_piece(self, text: str) -> tuple[str, str]:
        """The same of a text that is being written; and its end, where a secret may begin: to put before the rest."""
        data = self.clean_bytes(text.encode("utf-8", "surrogatepass"))
        most = min(len(data), max(map(len, self._bytes), default=0))
        begun = (
            n for n in range(most, 0, -1) if any(form.startswith(data[-n:]) for form in self._bytes)
        )
        cut = len(data) - next(begun, 0)
        return data[:cut].decode("utf-8", "surrogatepass"), data[cut:].decode(
            "utf-8", "surrogatepass"
        )


def _forms(secret: str) -> set[str]:
    """How a secret stands in text, in JSON, which may escape quotes, slashes and letters beyond ASCII, in JSON within
    JSON (an answer with a schema travels so, and a gateway wraps that), in an address, and in base64."""
    written = {secret, re.sub("""["'&<>]""", lambda sign: f"\\u{ord(sign[0]):04x}", secret)}
    for _ in range(4):
        written |= {
            json.dumps(form, ensure_ascii=escaped)[1:-1]
            for form in written
            for escaped in (False, True)
        }
    encoded = base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode()
    slashed = {form.replace("/", "\\/") for form in written}
    return {
        *written,
        *slashed,
        quote(secret, safe="", errors="surrogatepass"),
        encoded,
        encoded.rstrip("="),
    }


# Keys of vendors are known by their first letters, others by their shape.

KEY_STARTS = "sk-|sk_|rk-|gsk_|xai-|AIza|hf_|r8_|pplx-|nvapi-|ghp_|eyJ|AKIA|tgp_|fw_"
SECRET_START = re.compile(rf"(?i)(?:{KEY_STARTS})")
KEY = r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_\-.=+/]{20,}"
KEY_SHAPE = re.compile(rf"{KEY}\Z")
TOKEN_SHAPE = re.compile(r"(?=(?:.*[0-9]){3})[A-Za-z0-9_=+/]{28,}\Z")
