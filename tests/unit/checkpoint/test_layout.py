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
    ids = [f"{file.version}_{file.unique_id}" for file in files if file.unique_id]
    assert layout.list_unique_ids(listed) == ids
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
