"""Segments on Ray: the pool of workers, what goes to them and what comes back. Nothing else imports Ray."""
