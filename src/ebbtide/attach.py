"""`python -m ebbtide.attach job.py`: run a program with its streaming queries followed.

spark-submit takes this file as its application. `ebbtide.attach` is the function of the public API;
whoever imports this module finds that function under its name.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from ebbtide import api

        return api.attach(*arguments, **keywords)


if __name__ == "__main__":
    sys.path[0] = ""  # run as a file: a user's `import config` must not find a module of ours
    from ebbtide.attaching import run_program

    run_program(sys.argv[1:])
else:
    sys.modules[__name__].__class__ = _Callable
