"""The engines that are servers' clients: what they cost beside the bare driver, and whether size matters."""
