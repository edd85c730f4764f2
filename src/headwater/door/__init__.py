"""The ways in and out, one room for each protocol."""
