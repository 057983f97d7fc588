"""Validation of user input: values, settings, import paths, strict JSON."""
