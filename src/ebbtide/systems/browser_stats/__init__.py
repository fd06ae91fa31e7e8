"""Count pages per browser without state and with it."""
