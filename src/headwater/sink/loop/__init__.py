"""The one consumer loop that keeps any store in sync with a topic."""
