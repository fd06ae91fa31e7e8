from tests.inside import inside, no_waiting_for_the_disk, tmp_path  # noqa: F401
