"""Looking after this machine."""
