"""Show the examples in docstrings as code: an extension of Griffe, which mkdocstrings uses."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.M)


class Doctests(Extension):
    """Put a fence around each example."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of a name."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
