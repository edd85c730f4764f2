"""Which parts of an application work, which do not, since when and why."""
