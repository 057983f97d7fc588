"""Averaging gradients while the backward pass still runs."""
