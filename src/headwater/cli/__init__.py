"""The command line: one module for each noun, which imports what it needs when a command runs."""
