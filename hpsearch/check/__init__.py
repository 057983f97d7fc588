"""One trial of a sweep, run several times to see that it gives the same each time: `hpsearch check`."""
