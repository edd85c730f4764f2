"""SQLite by triggers, and any table with a version column by polling."""
