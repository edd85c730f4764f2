"""Receivers that take nothing back: webhooks, mail, functions.

Each delivery is recorded in a journal in the log.
"""
