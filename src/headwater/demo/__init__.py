"""The demonstration: a web shop with seeded traffic, live views, and a check of every number."""
