"""Warm start: existing results that a search begins with."""
