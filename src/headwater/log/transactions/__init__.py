"""Producers and transactions: sequence numbers, epochs, markers."""
