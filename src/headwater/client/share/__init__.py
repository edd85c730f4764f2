"""A share consumer of our own: records of a share group, and what is said about each of them."""
