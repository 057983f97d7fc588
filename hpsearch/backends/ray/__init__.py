"""Segments on Ray: the pool of workers, what goes to them and what comes back. Nothing else imports Ray."""

from __future__ import annotations

import sys

from hpsearch.backends.ray.quiet_import import import_ray_quietly

if "IPython" in sys.modules:
    import_ray_quietly()
