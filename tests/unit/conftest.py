from tests.inside import inside  # noqa: F401
