from __future__ import annotations

from ebbtide.systems.console import parse_console

BATCH = """\
-------------------------------------------
Batch: {n}
-------------------------------------------
+------------------------------------------+-----+
|window                                    |count|
+------------------------------------------+-----+
|{{2025-09-04 07:00:00, 2025-09-04 07:10:00}}|{n}    |
+------------------------------------------+-----+

"""


def test_batches_and_rows() -> None:
    found = parse_console(BATCH.format(n=3) + "noise\n" + BATCH.format(n=4))
    assert [batch.id for batch in found] == [3, 4]
    window = "{2025-09-04 07:00:00, 2025-09-04 07:10:00}"
    assert found[1].rows == ({"window": window, "count": "4"},)


def test_a_batch_that_is_half_printed_is_not_there_yet() -> None:
    text = BATCH.format(n=1)
    for cut in range(len(text) - len("+------------------------------------------+-----+\n\n")):
        assert parse_console(text[:cut]) == []
    assert len(parse_console(text)) == 1
