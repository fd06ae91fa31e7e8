"""The version of Ebbtide: pyproject.toml reads it here, and a release's tag must be the same."""

__version__ = "0.1.0"
