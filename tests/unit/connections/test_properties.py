"""A properties file is read as Java reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.connections import flatten, read_properties
from ebbtide.connections.properties import parse_properties
from ebbtide.errors import UsageError


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("  a:b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        ("a\tb", {"a": "b"}),
        ("a  =  = b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=a", {"": "a"}),
        ("# a=b\n  ! c=d\n\n \t\ne=f", {"e": "f"}),
        ("a=b\\\n   c", {"a": "bc"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\\\\\n  c", {"a": "b\\c"}),
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        ("a=b\\", {"a": "b"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a\\:b c", {"a:b": "c"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=\\u00e9\\u0142", {"a": "éł"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=b\na=c", {"a": "c"}),
        ('sasl.jaas.config=x.Y required \\\n  password="a=b:c#d";', None),
    ],
)
def test_each_rule(text: str, properties: dict[str, str] | None) -> None:
    expected = properties or {"sasl.jaas.config": 'x.Y required password="a=b:c#d";'}
    assert parse_properties(text) == expected


def _escape(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


_TEXTS = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))


@given(st.dictionaries(_TEXTS, _TEXTS))
def test_what_is_escaped_comes_back(properties: dict[str, str]) -> None:
    text = "\n".join(f"{_escape(name)}={_escape(value)}" for name, value in properties.items())

    assert parse_properties(text) == properties


def test_a_file_is_iso_8859_1(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes("sasl.mechanism=PLAIN\nclient.id=Zo\xeb\n".encode("iso-8859-1"))
    assert read_properties(file) == {"sasl.mechanism": "PLAIN", "client.id": "Zoë"}


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read: No such file"), (b"\0" * 9, "is no properties file")],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "client.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        read_properties(file)


def test_a_list_is_no_property() -> None:
    assert flatten({"ssl": {"key": {"password": "x"}}, "a": True}) == {
        "ssl.key.password": "x",
        "a": "true",
    }
    with pytest.raises(UsageError, match=r"property sasl\.mechanism is not a text") as refusal:
        flatten({"sasl": {"mechanism": ["hunter2"]}})
    assert "hunter2" not in str(refusal.value)
