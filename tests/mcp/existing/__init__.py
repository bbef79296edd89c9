"""A server that exists already, before and after its tool became durable."""
