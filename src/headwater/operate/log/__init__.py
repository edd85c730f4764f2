"""Looking after a log: topics, groups, lag, replay, the account of every record."""
