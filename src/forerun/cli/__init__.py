"""The command line: one file a command; text in, text out."""
