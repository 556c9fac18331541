"""Output of commands: fields, tables, sizes, progress."""
