"""Two streams joined within a time bound."""
