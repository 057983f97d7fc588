"""One study on disk, and the state of its sweep, which follows from its events."""
