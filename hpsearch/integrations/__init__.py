"""Integrations of other libraries' training loops. One line reports, saves and resumes a trial."""
