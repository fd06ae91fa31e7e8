"""Messages and summaries that the command line and the web UI share."""
