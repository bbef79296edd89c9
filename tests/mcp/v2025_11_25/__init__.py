"""The earlier task protocol, 2025-11-25, as it goes over the wire."""
