"""Real servers for tests, started from package registries: no containers."""
