from tests.inside import no_waiting_for_the_disk  # noqa: F401
