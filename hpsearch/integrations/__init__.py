"""Training loops of other libraries: one line reports, saves and goes on."""
