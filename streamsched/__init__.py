"""streamsched: an event-sourced streaming scheduler for GPU clusters."""

__version__ = "0.1.0"
