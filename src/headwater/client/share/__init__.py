"""A share consumer of our own: records of a share group one by one, acknowledgements with delay and in transactions."""
