"""`python -m tests.simulation RUNS [--seed N]`."""

import sys

from tests.simulation import campaign

campaign.same_everywhere()
sys.exit(campaign.main(sys.argv[1:]))
