"""One module for each store that can be kept in sync, and what SQL and columnar stores share."""
