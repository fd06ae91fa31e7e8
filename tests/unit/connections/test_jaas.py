"""`sasl.jaas.config` is read as Kafka reads it, and no refusal shows a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.connections.jaas import PLAIN, SCRAM, Login, parse_login
from ebbtide.errors import UsageError


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{SCRAM} required;", {}),
        (f'{PLAIN} required username="a" password="b";', {"username": "a", "password": "b"}),
        (
            f"{PLAIN}\n  REQUIRED\n  username = 'a'\n  password='b c';\n",
            {"username": "a", "password": "b c"},
        ),
        (f'{PLAIN} optional a=b c="d"; // that is all', {"a": "b", "c": "d"}),
        (f'{PLAIN} /* who */ required a="" b="x";', {"a": "", "b": "x"}),
        (PLAIN + r' required a="\"\\\n\101";', {"a": '"\\\nA'}),
        (f'{PLAIN} required a=";" b="=";', {"a": ";", "b": "="}),
        (f"{PLAIN} required a=$b;", {"a": "$b"}),
        # Java reads three digits only up to 377
        (PLAIN + r' required a="\777";', {"a": "?7"}),
    ],
)
def test_each_rule(text: str, options: dict[str, str]) -> None:
    login = parse_login(text)
    assert login.options == options
    assert login.module in (PLAIN, SCRAM)


@given(st.text())
def test_what_is_written_is_read(password: str) -> None:
    login = Login(PLAIN, {"username": "a", "password": password})
    assert parse_login(login.to_text()) == login


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not begin with a login module"),
        ("hunter2", "does not begin with a login module"),
        (f"{PLAIN} maybe password='hunter2';", "does not begin with a login module"),
        (f"{PLAIN} required password='hunter2'", "does not end with a semicolon"),
        (f"{PLAIN} required password;", "has an option without a value: number 1"),
        (f"{PLAIN} required a='hunter2' password=;", "has an option without a value: number 2"),
        (f"{PLAIN} required password=2hunter2;", "must be in double quotes"),
        (f"{PLAIN} required a='b'; {SCRAM} required a='hunter2';", "more than one login module"),
    ],
)
def test_a_wrong_one_is_refused_without_its_values(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refusal:
        parse_login(text)
    assert "hunter2" not in str(refusal.value)
