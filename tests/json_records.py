"""JSON records for decoders: usual ones, odd ones that are valid, and broken ones, by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

SCHEMA = (
    "name STRING, small SMALLINT, tiny TINYINT, id INT, total BIGINT, price DOUBLE, "
    "is_open BOOLEAN, at TIMESTAMP, event_time TIMESTAMP"
)
_STRINGS = (
    *(
        '"home"',
        '""',
        '"żółw 🐢"',
        '"a\\"b"',
        '"\\u00e9\\n\\/"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\u0000"',
    ),
    *('"}{"', '"]}"', '"a\\\\"', '"\\x"', '"tab\tinside"', '"\x7f"', '"NaN"', '"Inf"', '": NaN"'),
    *('"' + "x" * 1_200 + '"', '"\\udc00\\ud800"', '"\\u12"', '"\u2028"', '"\ufeff"', '"open'),
)
_NUMBERS = (
    *(
        "0",
        "1",
        "-1",
        "-0",
        "0.0",
        "-0.0",
        "1.0",
        "1.5",
        "1e2",
        "1E+2",
        "1e-2",
        "127",
        "128",
        "255",
    ),
    *("256", "-128", "-129", "32767", "32768", "65535", "65536", "2147483647", "2147483648"),
    *(
        "-2147483648",
        "-2147483649",
        "9223372036854775807",
        "9223372036854775808",
        "1e400",
        "1e-400",
    ),
    *("-9223372036854775808", "123456789012345678901234567890", "0.1", "0.30000000000000004"),
    *("2.2250738585072011e-308", "4.9e-324", "1.7976931348623157e308", "1.7976931348623159e308"),
    *(
        "01",
        "+1",
        ".5",
        "1.",
        "-",
        "1e",
        "0x1",
        "NaN",
        "Infinity",
        "-Infinity",
        "Inf",
        "-Inf",
        "INF",
    ),
    *(
        "9007199254740993",
        "1" * 999,
        "1" * 1_001,
        "0." + "1" * 1_001,
        "١",
        "1_000",
        "1d",
        "1f",
        "nan",
    ),
)
_TIMES = (
    *("2025-09-04T07:00:00", "2025-09-04 07:00:00", "2025-09-04T07:00:00Z", "2025-09-04T07:00:00z"),
    *("2025-09-04T07:00:00.1", "2025-09-04T07:00:00.123456Z", "2025-09-04T07:00:00.1234567Z"),
    *("2025-09-04T07:00:00.123456789", "2025-09-04T07:00:00.", "2025-09-04T07:00:00.Z"),
    *("2025-09-04T07:00:00+02:00", "2025-09-04T07:00:00-11:30", "2025-09-04T07:00:00+0200"),
    *("2025-09-04T07:00:00+2:00", "2025-09-04T07:00:00+18:00", "2025-09-04T07:00:00+18:01"),
    *(
        "2025-09-04T07:00:00+17:60",
        "2025-09-04T07:00:00.5+02:00",
        "2025-09-04T07:00:00 Europe/Paris",
    ),
    *(
        "2025-09-04T07:00:00[UTC]",
        "2025-09-04T07:00",
        "2025-09-04T07",
        "2025-09-04",
        "2025-09",
        "2025",
    ),
    *(
        "07:00:00",
        "T07:00:00",
        "2024-02-29T00:00:00",
        "2025-02-29T00:00:00",
        "2000-02-29T00:00:00Z",
    ),
    *("1900-02-29T00:00:00Z", "2025-04-31T00:00:00", "2025-00-01T00:00:00", "2025-13-01T00:00:00"),
    *("2025-01-00T00:00:00", "2025-01-01T24:00:00", "2025-01-01T23:60:00", "2025-01-01T23:59:60"),
    *(
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "1582-10-10T00:00:00Z",
    ),
    *(
        "10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "+2025-01-01T00:00:00Z",
        "1969-12-31T23:59:59.9Z",
    ),
    *(" 2025-09-04T07:00:00", "2025-09-04T07:00:00 ", "2025-09-04t07:00:00", "2025-9-4T7:0:0"),
    *("2025-03-30T02:30:00", "2025-10-26T02:30:00", "2025/09/04T07:00:00", "2025-09-04T07.00.00"),
    *("٢٠٢٥-09-04T07:00:00", "2025-09-04T07:00:00,5", "1757000000", "now", "epoch", "", "null"),
)
_VALUES = (
    "null",
    "true",
    "false",
    "[]",
    "{}",
    '{"a":[1,{"b":2}]}',
    '"true"',
    "True",
    "tru",
    "[1,]",
)
_TAILS = (
    "",
    "",
    "",
    "",
    "",
    " ",
    "\n",
    "}",
    "]",
    ",",
    "{}",
    " and more",
    "\x00",
    "\n{}",
    "//c",
    ",{}",
)
_HEADS = ("", "", "", "", "", "", " ", "\n", "\ufeff", "[", "\x00", "x")
_FIELDS = (
    "name",
    "small",
    "tiny",
    "id",
    "total",
    "price",
    "is_open",
    "at",
    "event_time",
    "other",
    "",
)


def usual(random_: random.Random) -> bytes:
    """A record as programs write them, all of whose fields convert."""
    at = f"2025-{random_.randint(1, 12):02}-{random_.randint(1, 28):02}T{random_.randint(0, 23):02}"
    record = {
        "name": random_.choice(("home", "index", "żółw")),
        "small": random_.randint(-(2**15), 2**15 - 1),
        "tiny": random_.randint(-(2**7), 2**7 - 1),
        "id": random_.randint(-(2**31), 2**31 - 1),
        "total": random_.randint(-(2**63), 2**63 - 1),
        "price": random_.choice((random_.random(), random_.uniform(-1e300, 1e300), 17.0)),
        "is_open": random_.choice((True, False, None)),
        "at": f"{at}:00:00",
        "event_time": f"{at}:30:59.{random_.randint(0, 999_999):06}Z",
        "other": random_.choice((None, [1, {"a": "}"}], "x")),
    }
    separators = random_.choice(((",", ":"), (", ", ": ")))
    text = json.dumps(record, ensure_ascii=random_.random() < 0.5, separators=separators)
    return text.encode()


def odd(random_: random.Random) -> bytes | None:
    """A record of odd values, which may be broken in some way."""
    names = [name for name in _FIELDS if random_.random() < 0.5]
    random_.shuffle(names)
    if random_.random() < 0.05:
        names += names[:1]
    colon, comma = random_.choice(((":", ","), (" :\t", "\r,\n"), (": ", ", ")))
    pairs = (f"{_name(random_, name)}{colon}{_value(random_, name)}" for name in names)
    return f"{{{comma.join(pairs)}}}".encode()


def damaged(random_: random.Random) -> bytes | None:
    """A record that was damaged, cut, doubled or replaced."""
    record = random_.choice((usual, odd))(random_) or b""
    place = random_.randrange(len(record) + 1)
    byte = random_.choice(b'{}[]":,\\ \n\x00\xff\xc3\xa9\xed\xa0\x80\x1f0aN-.')
    return random_.choice(
        (
            None,
            b"",
            record[:place],
            record[place:],
            record[:place] + bytes([byte]) + record[place + 1 :],
            record[:place] + bytes([byte]) + record[place:],
            record[:place] + record[place + 1 :],
            record + record,
            random_.choice(_HEADS).encode() + record + random_.choice(_TAILS).encode(),
            b"[" + record + b"]",
            b'{"a":' + b"[" * 990 + b"]" * 990 + b"," + record[1:],
            b'{"a":' + b"[" * 1_010 + b"]" * 1_010 + b"," + record[1:],
            b'{"' + b"n" * 50_001 + b'":1,' + record[1:],
        )
    )


def records(seed: int, count: int) -> Iterator[bytes | None]:
    """Records of all kinds, in runs of one kind, so that whole batches are usual."""
    random_ = random.Random(seed)
    kinds: tuple[Callable[[random.Random], bytes | None], ...] = (usual, usual, odd, damaged)
    made = 0
    while made < count:
        kind, length = random_.choice(kinds), random_.choice((1, 3, 50))
        for _ in range(min(length, count - made)):
            yield kind(random_)
        made += length


def _name(random_: random.Random, name: str) -> str:
    if name and random_.random() < 0.05:
        return f'"\\u{ord(name[0]):04x}{name[1:]}"'
    return f'"{name.upper() if random_.random() < 0.02 else name}"'


def _value(random_: random.Random, name: str) -> str:
    at = f'"{random_.choice(_TIMES)}"'
    fitting = {
        "name": _STRINGS,
        "is_open": ("true", "false", "null"),
        "at": (at,),
        "event_time": ('"2025-09-04T07:00:00Z"', at),
        "other": (*_STRINGS, *_NUMBERS, *_VALUES),
    }
    if random_.random() < 0.15:
        return random_.choice((*_STRINGS, *_NUMBERS, *_VALUES, at))
    return random_.choice(fitting.get(name, _NUMBERS))
