"""The one loop that publishes any database's changes with their position, and its commands."""
