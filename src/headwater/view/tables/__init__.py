"""One SQLite file for each view: its writer, its readers, and its format."""
