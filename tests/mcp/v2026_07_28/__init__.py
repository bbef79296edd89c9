"""The later task protocol, 2026-07-28, as it goes over the wire."""
