"""`python -m tests.fuzz [TARGET …] [--cases N] [--seed N] [--plant NAME] [--replay FILE]`."""

import sys

from tests.fuzz.campaign import main

sys.exit(main(sys.argv[1:]))
