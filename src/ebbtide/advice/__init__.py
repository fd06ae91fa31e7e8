"""A pipeline and a moment in, both ways back with what they cost out, and one recommended."""

from ebbtide.advice.compare import find_ways
from ebbtide.advice.options import Step, Way, Ways

__all__ = ["Step", "Way", "Ways", "find_ways"]
