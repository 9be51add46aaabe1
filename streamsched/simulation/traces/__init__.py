"""Trace files of other schedulers, read as demand. What each format is read as: `replay/traces/FORMATS.md`."""

from streamsched.simulation.traces.formats import Format
from streamsched.simulation.traces.quotas import read_sizes
from streamsched.simulation.traces.reading import Contract, Selection, Trace, demand_of, read_philly, read_trace

__all__ = ["Contract", "Format", "Selection", "Trace", "demand_of", "read_philly", "read_sizes", "read_trace"]
