"""Segments on Ray: nothing outside of this room imports Ray."""
