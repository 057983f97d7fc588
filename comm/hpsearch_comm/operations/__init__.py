"""The calls of a user: checked arguments, operations in order, results."""
