"""The composition root: settings and an application in, supervised processes out."""
