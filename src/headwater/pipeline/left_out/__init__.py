"""Records that a view leaves out: invalid, late and failed ones, with their reasons."""
