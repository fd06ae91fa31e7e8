"""Report visits before they end."""
