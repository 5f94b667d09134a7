"""Takes secrets out of text where the text enters an error, a log or the store: by their value, not
by guessing. Also holds the patterns of secrets that were written into a file by mistake."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "[redacted]"

MIN_SECRET = 6
"""Shorter values are not treated as secrets: masking every `abc` would destroy messages and hide
nothing."""

MIN_IN_DATA = 12
"""Shorter secrets are left alone in the answers of models: a local server's dummy key (`ollama`,
`lm-studio`) is a word that results may hold. No provider's key is so short."""


class Redactor:
    """Replaces known secret values by `[redacted]`.

    `secrets` are the keys, tokens and header values of the providers. Those that are only
    `in_text`, header values as they are written in a file, may be words of an answer."""

    __slots__ = ("_bytes", "_secrets")

    def __init__(self, secrets: Iterable[str] = (), in_text: Iterable[str] = ()) -> None:
        secret_forms = _all_forms(secrets)
        text_forms = _all_forms(in_text)
        # longest first, so that a secret that contains another is masked whole
        self._secrets = sorted(secret_forms | text_forms, key=len, reverse=True)
        self._bytes = [
            form.encode("utf-8", "surrogateescape")
            for form in self._secrets
            if form in secret_forms and len(form) >= MIN_IN_DATA
        ]

    def clean(self, text: str) -> str:
        """Masks every known secret in a text."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def clean_bytes(self, body: bytes) -> bytes:
        """Masks every known secret that cannot be a word, in a provider's answer."""
        for secret in self._bytes:
            if secret in body:
                body = body.replace(secret, MASK.encode())
        return body

    def clean_piece(self, text: str) -> tuple[str, str]:
        """Masks secrets in a piece of a text that is still being written.

        The second text is the end of the piece where a secret may begin: put it before the next
        piece."""
        data = self.clean_bytes(text.encode("utf-8", "surrogatepass"))
        cut = len(data) - self._begun(data)
        shown = data[:cut].decode("utf-8", "surrogatepass")
        held = data[cut:].decode("utf-8", "surrogatepass")
        return shown, held

    def _begun(self, data: bytes) -> int:
        """Counts the bytes at the end of `data` with which a secret begins, as many as possible."""
        longest = min(len(data), max(map(len, self._bytes), default=0))
        for length in range(longest, 0, -1):
            end = data[-length:]
            if any(form.startswith(end) for form in self._bytes):
                return length
        return 0


def _all_forms(secrets: Iterable[str]) -> set[str]:
    """Gives every form of the secrets that are long enough."""
    return {form for secret in secrets if len(secret) >= MIN_SECRET for form in _forms(secret)}


def _forms(secret: str) -> set[str]:
    """Gives the forms that a secret has in text, in JSON, in an address and in base64.

    JSON may escape quotes, slashes and letters beyond ASCII, and may be within JSON: an answer with
    a schema travels so, and a gateway wraps that."""
    html_safe = re.sub("""["'&<>]""", lambda sign: f"\\u{ord(sign[0]):04x}", secret)
    written = {secret, html_safe}
    for _ in range(4):
        written |= {_in_json(form, escaped) for form in written for escaped in (False, True)}
    slashed = {form.replace("/", "\\/") for form in written}
    address = quote(secret, safe="", errors="surrogatepass")
    base64_text = base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode()
    return {*written, *slashed, address, base64_text, base64_text.rstrip("=")}


def _in_json(text: str, escaped: bool) -> str:
    return json.dumps(text, ensure_ascii=escaped)[1:-1]


# Keys of vendors are known by their first letters, others by their shape.

KEY_STARTS = "sk-|sk_|rk-|gsk_|xai-|AIza|hf_|r8_|pplx-|nvapi-|ghp_|eyJ|AKIA|tgp_|fw_"
SECRET_START = re.compile(rf"(?i)(?:{KEY_STARTS})")
KEY = r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_\-.=+/]{20,}"
KEY_SHAPE = re.compile(rf"{KEY}\Z")
TOKEN_SHAPE = re.compile(r"(?=(?:.*[0-9]){3})[A-Za-z0-9_=+/]{28,}\Z")
