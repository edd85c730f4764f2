"""The public Writer, and what it does with records when there is no room for them."""
