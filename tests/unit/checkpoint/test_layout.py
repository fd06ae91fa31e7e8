"""Many names are read at once; the results must be those of reading one after the other."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ebbtide.checkpoint import layout
from ebbtide.checkpoint.state_files import read_versions

_STEM = st.from_regex(r"(0|[1-9][0-9]{0,3}|007|1{18,19})(_[0-9A-Fa-f-]{1,3}|_)?", fullmatch=True)
_KIND = st.sampled_from([".delta", ".changelog", ".snapshot", ".zip", ".sst", "", ".delta\n7.zip"])
_NAMES = st.builds(
    lambda dot, stem, kind, sums: f"{dot}{stem}{kind}{sums}",
    st.sampled_from(["", "", ".", ".."]),
    _STEM,
    _KIND,
    st.sampled_from(["", "", ".crc", ".crc.crc", ".crc.crc.crc", ".4e1c.TID3.tmp", "\n", "é"]),
)


@example(names=["0.delta", "1111111111111111111.delta"], version=10**18)
@example(names=[".delta", "0.delta"], version=10**18 - 1)
@given(names=st.lists(_NAMES, unique=True), version=st.integers(0, 10**18))
def test_many_names_at_once_are_read_as_each_alone(names: list[str], version: int) -> None:
    listed = tuple(sorted(names))
    mains = {name: layout.parse_state_file(layout.main_file(name)) for name in listed}
    files = [file for name in listed if (file := layout.parse_state_file(name)) is not None]
    assert layout.parse_state_files(listed) == files
    assert layout.list_versions(listed) == {file.version for file in files}
    assert layout.state_names(listed) == {file.name for file in files}
    for least in (0, 9, 10, 99, 199, version):
        later = [name for name, file in mains.items() if file and file.version > least]
        assert list(layout.names_above(listed, least)) == later
    unknown = [n for n, file in mains.items() if file is None and not layout.is_temporary(n)]
    assert layout.unknown_files("state/0/1", listed) == unknown
    versions = read_versions(listed)
    for kind, mapping in ((layout.SNAPSHOT, versions.snapshots), (layout.DELTA, versions.changes)):
        for file in (each for each in files if each.kind == kind):
            assert file in mapping[file.version]
            if file.unique_id:
                found = versions.find(kind, file.version, [file.unique_id])
                same = [f for f in mapping[file.version] if f.unique_id == file.unique_id]
                assert found == same[0]
    named = [file for file in files if file.unique_id]
    for file in named:
        assert not versions.lacking({file.version: ["no", file.unique_id or ""]})
        assert versions.lacking({file.version: ["no"]}) == {file.version}
    every = {file.version: [file.unique_id or ""] for file in named}
    assert versions.lacking({**every, version: []}) == {version}


def test_a_name_of_two_lines_is_not_two_files() -> None:
    names = (".1.delta.crc\n.2.delta.crc", "1.delta", "2.delta")
    assert layout.unknown_files("state/0/1", names) == [names[0]]


def test_an_id_that_no_file_can_have_is_lacking() -> None:
    """Also where a file that is not Spark's is called as if it had that id."""
    names = ("3_a.b.changelog", "3_a\n4_a.changelog", "4_b.changelog", "4_b.changelog.crc")
    versions = read_versions(names)
    wanted = {3: ["a.b"], 4: ["a"]}
    assert versions.lacking(wanted) == {3, 4}
    assert [versions.find(layout.DELTA, v, ids) for v, ids in wanted.items()] == [None, None]
    assert versions.lacking({4: ["a", "b"]}) == set()
    assert layout.unknown_files("state/0/1", names) == [names[0], names[1]]
