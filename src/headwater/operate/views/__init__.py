"""Looking after views: check, rebuild, reset, scale, back up, inspect."""
