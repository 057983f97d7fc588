"""The definition of a search: a sweep, the file that it is read from, and the mistakes in it."""
