"""Running views: the batch protocol, its results topic, and everything that a crash may interrupt."""
