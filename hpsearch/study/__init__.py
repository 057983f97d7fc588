"""One study on disk, and the state of its sweep, which is computed from its events."""
