"""The page: a thin face on the core, served to a browser on this machine."""
