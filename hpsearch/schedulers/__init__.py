"""Schedulers: how far each trial goes."""
