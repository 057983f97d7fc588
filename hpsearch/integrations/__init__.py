"""Training loops of other libraries: one line reports, saves and resumes."""
