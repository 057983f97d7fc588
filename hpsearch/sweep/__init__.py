"""The definition of a search: a sweep, reading it from a file, and reporting the mistakes in the file."""
