"""`python -m ebbtide.attach job.py`: run a program with its streaming queries followed.

spark-submit takes this file as its application. It is not imported: `ebbtide.attach` is the
function of the public API.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = ""  # run as a file: a user's `import config` must not find a module of ours
    from ebbtide.attaching import run_program

    run_program(sys.argv[1:])
