"""Search methods of other libraries, on the tables and the clock of `hpsearch benchmark`."""
