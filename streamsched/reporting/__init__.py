"""Pictures and pages of outcomes: a terminal, one HTML file, and the demonstration that shows both."""
