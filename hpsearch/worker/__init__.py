"""Run one segment in one process: a function, an object or a script, alone or as one rank of a gang."""
