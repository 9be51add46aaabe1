"""The nouns: frozen values that every other package speaks in."""
