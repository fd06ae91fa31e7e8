"""Read and write `sasl.jaas.config`, where Java's clients keep user names and passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ebbtide.errors import UsageError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_TOKEN = re.compile(
    r"""
    (?P<skipped> \s+ | //[^\n]* | /\*.*?\*/ )
  | " (?P<double> (?: \\. | [^"\\\n] )* ) "
  | ' (?P<single> (?: \\. | [^'\\\n] )* ) '
  | (?P<word> (?: [^\W\d] | \$ )[\w.$-]* )
  | (?P<sign> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_IS, _END = ("sign", "="), ("sign", ";")
_FLAGS = ("required", "requisite", "sufficient", "optional")


@dataclass(frozen=True)
class Login:
    """One login module with its options."""

    module: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_text(self) -> str:
        r"""As a value of `sasl.jaas.config`.

        >>> Login("a.B", {"password": 'x"y'}).to_text()
        'a.B required password="x\\"y";'
        """
        options = "".join(f' {name}="{_escape(value)}"' for name, value in self.options.items())
        return f"{self.module} required{options};"


def parse_login(text: str) -> Login:
    """The login module of a `sasl.jaas.config`; a refusal never shows its values.

    >>> parse_login('a.B required username="visits" password="secret";').options["username"]
    'visits'
    >>> parse_login('a.B required password=secret')  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ebbtide.errors.UsageError: sasl.jaas.config does not end with a semicolon. Write it as: ...
    """
    tokens = list(_split(text))
    if len(tokens) < 2 or tokens[1][1].lower() not in _FLAGS:
        raise _wrong("does not begin with a login module and the word required")
    if tokens[-1] != _END:
        raise _wrong("does not end with a semicolon")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if _END in rest:
        raise _wrong("has more than one login module")
    for number, at in enumerate(range(0, len(rest), 3), 1):
        name, *value = rest[at : at + 3]
        if len(value) < 2 or value[0] != _IS or value[1][0] == "sign":
            raise _wrong(f"has an option without a value: number {number}")
        options[name[1]] = value[1][1]
    return Login(tokens[0][1], options)


def _split(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the text of each word, each quoted text and each sign."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _wrong(f"has something at character {at + 1} that must be in double quotes")
        at, kind = match.end(), match.lastgroup or ""
        if kind in ("double", "single"):
            yield "word", _unescape(match[kind])
        elif kind != "skipped":
            yield kind, match[kind]


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)

    return _ESCAPE.sub(replace, text)


def _escape(text: str) -> str:
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(character, escaped)
    return text


def _wrong(what: str) -> UsageError:
    example = f'{SCRAM} required username="…" password="…";'
    return UsageError(f"sasl.jaas.config {what}.", f"Write it as: {example}")
