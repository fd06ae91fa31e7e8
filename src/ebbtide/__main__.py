"""`python -m ebbtide` is `ebbtide`; spark-submit takes this file as its application."""

import sys

import ebbtide
from ebbtide.cli import main

if __name__ == "__main__":
    if sys.path[0] in ebbtide.__path__:
        # run as a file: a user's `import config` must not find a module of ours
        del sys.path[0]
    main()
