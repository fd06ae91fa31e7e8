"""Simulated stores: several actors on a filesystem in memory, with faults and a clock of its own.

`python -m tests.simulation RUNS` is the campaign; see docs/reliability.md.
"""
