"""streamsched: an event-sourced streaming scheduler for GPU clusters."""
