"""Decisions: functions of the state alone. They read it and never write."""
