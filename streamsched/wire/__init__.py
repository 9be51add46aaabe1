"""Bytes: the only code that knows JSON, and the contracts of the topics that carry it."""
